"""Shapes that suit only sizes which divide evenly: a call says whether they do."""

import numpy as np
import pytest
from cuda_devices import EmulatedDevice

import staticgrad as sg
from staticgrad.compiler.cuda.device import using

TARGETS = ["reference", "cpu", "cuda"]
rng = np.random.default_rng(0)


def compiled(outputs, inputs, target="cpu"):
    with using(EmulatedDevice()):
        return sg.compile(outputs, inputs=inputs, target=target)


def rows(x):
    return sg.sin(x).reshape(-1, 3) * np.arange(1, 4, dtype="float32")


BUILDS = {
    "plain": (lambda x, y: x.reshape(-1, 3), lambda x, y: x.reshape(-1, 3)),
    "rows": (
        lambda x, y: sg.sum(rows(x), 0),
        lambda x, y: (np.sin(x).reshape(-1, 3) * [1, 2, 3]).sum(0),
    ),
    "back": (lambda x, y: sg.exp(rows(x).reshape(x.shape)) + x, None),
    "turned": (
        lambda x, y: sg.exp(y.T.reshape(3, -1)),
        lambda x, y: np.exp(y.T.reshape(3, -1)),
    ),
    "split": (
        lambda x, y: [sg.exp(part) for part in sg.split(y, 3)],
        lambda x, y: [np.exp(part) for part in np.split(y, 3)],
    ),
    "columns": (lambda x, y: sg.hsplit(y, 2), lambda x, y: np.hsplit(y, 2)),
    "array_split": (
        lambda x, y: sg.array_split(x, 4),
        lambda x, y: np.array_split(x, 4),
    ),
    "vmap": (
        lambda x, y: sg.vmap(lambda r: sg.sum(r.reshape(-1, 2), 0))(y),
        lambda x, y: y.reshape(len(y), y.shape[1] // 2, 2).sum(1),
    ),
    "scan": (
        lambda x, y: sg.scan(
            lambda c, r: (c + r.reshape(2, -1)[0], None), y[0].reshape(2, -1)[0], y
        )[0],
        None,
    ),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", BUILDS)
def test_sizes_that_divide(name, target):
    build, numpy = BUILDS[name]
    x, y = sg.input("x", ("n",)), sg.input("y", ("n", "m"))
    f = compiled(build(x, y), [x, y], target)
    plain = compiled(build(x, y), [x, y], "reference")
    for n, m in [(6, 4), (12, 2), (3, 8)]:
        args = [rng.normal(size=s).astype("float32") for s in ((n,), (n, m))]
        want = plain(*args) if numpy is None else numpy(*args)
        got = f(*args)
        pairs = zip(got, want, strict=True) if isinstance(want, list) else [(got, want)]
        for one, other in pairs:
            assert one.shape == other.shape
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "build", [rows, lambda x: sg.split(x, 3), lambda x: x.reshape(x.shape[0] // 3, 3)]
)
def test_a_call_refuses_sizes_that_do_not_divide(build, target):
    x = sg.input("x", ("n",))
    f = compiled(build(x), [x], target)
    f(np.zeros(6, "float32"))
    text = r"reshape requires as many .*got float32\[7\]; pass sizes that divide "
    with pytest.raises(sg.ShapeError, match=text + r"evenly, here n = 7  at .*py:\d"):
        f(np.zeros(7, "float32"))
    f(np.zeros(0, "float32"))


def test_a_size_that_is_divided_by_zero_is_refused():
    x, y = sg.input("x", (12,)), sg.input("y", ("n",))
    f = compiled([x.reshape(y.shape[0], -1), y], [x, y])
    assert f(np.zeros(12, "float32"), np.zeros(4, "float32"))[0].shape == (4, 3)
    with pytest.raises(sg.ShapeError, match="as many elements as"):
        f(np.zeros(12, "float32"), np.zeros(5, "float32"))
    with pytest.raises(sg.ShapeError, match="not divided by 0, .* here n = 0  at "):
        f(np.zeros(12, "float32"), np.zeros(0, "float32"))


@pytest.mark.parametrize("target", TARGETS)
def test_gradients_of_sizes_that_divide(target):
    x = sg.input("x", ("n",), "float64")
    y = sum(sg.sum(p**2) * (k + 1) for k, p in enumerate(sg.split(x, 3)))
    z = sg.sum(sg.sum(sg.exp(x.reshape(2, -1)), 0) ** 2)
    f = compiled([sg.grad(y, x), sg.grad(z, x)], [x], target)
    data = rng.normal(size=12)
    first, second = f(data)
    np.testing.assert_allclose(first, 2 * data * np.repeat([1, 2, 3], 4))
    e = np.exp(data.reshape(2, -1))
    np.testing.assert_allclose(second, (2 * e.sum(0) * e).ravel())


def test_a_training_run_refuses_a_tail_that_does_not_divide():
    with sg.Graph(seed=0):
        x = sg.input("x", ("batch",))
        w = sg.parameter(np.zeros(2, "float32"), "w")
        loss = sg.mean((x.reshape(-1, 2) - w) ** 2)
    trainer = sg.Trainer(loss, optimizer=sg.optim.SGD(0.1))
    data = rng.normal(size=14).astype("float32")
    trainer.fit({"x": data}, epochs=1, batch_size=4)
    with pytest.raises(sg.ShapeError, match="divide evenly"):
        trainer.fit({"x": data[:13]}, epochs=1, batch_size=4)


WINDOWS = {
    "read": lambda x, w, i: sg.dynamic_slice(x, (i, 0), w.shape) * w,
    "write": lambda x, w, i: sg.dynamic_update_slice(x, w, (i, 0)),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("axis", [16, "m"])
@pytest.mark.parametrize("name", WINDOWS)
def test_a_window_of_symbolic_size_fits_into_its_axis(name, axis, target):
    with sg.Graph(dtype="float64"):
        x, w = sg.input("x", (axis, 4)), sg.input("w", ("n", 4))
        y = WINDOWS[name](x, w, sg.constant(np.int64(2)))
        slopes = sg.grad(sg.sum(y * y), [x, w])
    f = compiled([y, *slopes], [x, w], target)
    held, part = rng.normal(size=(2, 16, 4))
    for n in (3, 14):
        value, of_x, of_w = f(held, part[:n])
        block = slice(2, 2 + n)
        if name == "read":
            np.testing.assert_allclose(value, held[block] * part[:n])
            np.testing.assert_allclose(of_x[block], 2 * held[block] * part[:n] ** 2)
            continue
        expected = held.copy()
        expected[block] = part[:n]
        np.testing.assert_array_equal(value, expected)
        np.testing.assert_allclose(of_w, 2 * part[:n])
        assert not of_x[block].any()
    with pytest.raises(sg.IndexOutOfRange, match="a slice requires 0 <= index < 2"):
        f(held, part[:15])
    with pytest.raises(sg.ShapeError, match=r"axis of 16, got one of 17.*here.*n = 17"):
        f(held, np.ones((17, 4)))


def test_a_queue_takes_each_batch_of_a_training_run():
    with sg.Graph(seed=0) as graph:
        x = sg.input("x", ("batch", 4))
        queue = sg.state(np.zeros((8, 4), np.float32), name="queue")
        start = sg.state(np.int64(0), name="start")
        keys = sg.nn.Linear(4, 4)(x)
        loss = sg.mean((keys - sg.mean(queue, axis=0)) ** 2)
        kept = sg.dynamic_update_slice(queue, sg.stop_gradient(x), (start, 0))
        sg.update(queue, kept)
        sg.update(start, (start + x.shape[0]) % 8)
    assert len(graph.updates) == 2
    trainer = sg.Trainer(loss, sg.optim.SGD(0.1))
    data = rng.normal(size=(16, 4)).astype(np.float32)
    trainer.fit({"x": data}, batch_size=4, shuffle=False, progress=False)
    np.testing.assert_array_equal(queue.value, data[8:])


PARTS = {
    "rows": lambda x, table: x + table[: x.shape[1]],
    "moved": lambda x, table: x * table[3 : 3 + x.shape[1]],
    "rest": lambda x, table: table[x.shape[1] :] * 2,
    "square": lambda x, table: (table @ table.T)[: x.shape[1], : x.shape[1]],
    "written": lambda x, table: table.at[: x.shape[1]].set(x[0]),
    "added": lambda x, table: x.at[:, -2:].add(1.0),
    "split": lambda x, table: sg.split(x, [2], axis=1)[1] ** 2,
    "scan": lambda x, table: sg.scan(
        lambda c, row: (c + row[:2] * table[:2], None), table[:2], x
    )[0],
    "vmap": lambda x, table: sg.vmap(lambda r: r * table[: r.shape[0]])(x),
}


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("name", PARTS)
def test_slices_to_symbolic_bounds_are_those_of_the_reference(name, target):
    with sg.Graph(dtype="float64"):
        x, table = sg.input("x", ("n", "t", 4)), sg.input("table", (16, 4))
        y = PARTS[name](x, table)
        outputs = [y, *sg.grad(sg.sum(y * y), [x, table], unused="zero")]
    f = compiled(outputs, [x, table], target)
    reference = compiled(outputs, [x, table], "reference")
    fixed = rng.normal(size=(16, 4))
    for shape in ((2, 5, 4), (3, 12, 4), (1, 4, 4)):
        given = rng.normal(size=shape), fixed
        for got, want in zip(f(*given), reference(*given), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-12)
    small = {"added", "split", "scan"}
    wrong = rng.normal(size=(2, 1 if name in small else 17, 4))
    for run in (f, reference):
        with pytest.raises(sg.ShapeError, match=r"here .*t = \d+  at test_even"):
            run(wrong, fixed)


EMPTY = {
    "ends": (np.s_[3:], lambda k: np.s_[3:k], (5, 3)),
    "begins past its axis": (np.s_[:], lambda k: np.s_[3:k], (2, 3)),
    "backwards": (np.s_[:], lambda k: np.s_[k:1:-1], (1, 1)),
    "of nothing": (np.s_[2:], lambda k: np.s_[0:0:-1], (2, 1)),
    "steps": (np.s_[1:], lambda k: np.s_[k::2], (3, 2)),
}


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("name", EMPTY)
def test_an_empty_slice_begins_within_its_axis(name, target):
    first, second, (n, k) = EMPTY[name]
    with sg.Graph(dtype="float64"):
        x, z = sg.input("x", ("n",)), sg.input("z", ("k",))
        y = sg.cumsum(x)[first][second(z.shape[0])]
        outputs = [y, sg.grad(sg.sum(y * y), x)]
    given = np.arange(1.0, n + 1), np.ones(k)
    f = compiled(outputs, [x, z], target)
    reference = compiled(outputs, [x, z], "reference")
    if name not in ("of nothing", "steps"):
        for run in (f, reference):
            with pytest.raises(sg.ShapeError, match=r"fits, here .*at test_even"):
                run(*given)
        return
    for got, want in zip(f(*given), reference(*given), strict=True):
        np.testing.assert_array_equal(got, want)
    assert f(*given)[0].shape == (0,)
