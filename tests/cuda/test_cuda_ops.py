"""Every op at each of its samples on the cuda target, in the emulator, against NumPy.

What runs are the source strings that are compiled for a GPU.
"""

import numpy as np
import pytest
from cuda_devices import EmulatedDevice
from test_ops_targets import CHAINS, LAYOUTS, SIZES, node_of
from tolerances import assert_near, assert_ulp

import staticgrad as sg
from staticgrad.compiler.cuda.device import using
from staticgrad.ir.op import OPS


def compiled(outputs, inputs, device=None, **options):
    with using(device or EmulatedDevice()):
        return sg.compile(outputs, inputs=inputs, target="cuda", **options)


def samples_of(op):
    """Inputs, outputs, arrays and (ulp, wanted) of all samples in one graph."""
    inputs, outputs, arrays, wanted = [], [], [], []
    for sample in op.samples():
        args = [np.asarray(arg) for arg in sample.args]
        leaves = [
            sg.input(f"x{len(inputs) + n}", a.shape, a.dtype)
            for n, a in enumerate(args)
        ]
        inputs += leaves
        arrays += args
        outputs += node_of(op, sample, leaves)
        results = op.numpy(*args, **sample.attrs)
        results = results if op.outputs != 1 else (results,)
        wanted += [(sample.ulp, result) for result in results]
    return inputs, outputs, arrays, wanted


@pytest.mark.parametrize("op", [op for op in OPS.values() if op.samples()], ids=repr)
def test_ops_in_the_emulator_equal_numpys(op):
    inputs, outputs, arrays, wanted = samples_of(op)
    f = compiled(outputs, inputs)
    for got, (ulp, want) in zip(f(*arrays), wanted, strict=True):
        assert_ulp(got, want, ulp)


ORDERED = "reduce_sum reduce_max cumsum take scatter_add top_k argsort matmul".split()


@pytest.mark.parametrize("name", [name for name in ORDERED if name in OPS])
def test_orders_of_threads_and_sizes_of_blocks_do_not_matter(name):
    inputs, outputs, arrays, wanted = samples_of(OPS[name])
    for seed, (block, most) in enumerate([(32, 1), (64, 3), (128, 2)]):
        device = EmulatedDevice(seed)
        device.block, device.most_blocks = block, most
        f = compiled(outputs, inputs, device)
        for _ in range(2):  # launched, then captured
            for got, (ulp, want) in zip(f(*arrays), wanted, strict=True):
                assert_ulp(got, want, ulp)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_inputs(layout):
    x, y = sg.input("x", (3, 5)), sg.input("y", (5,))
    outputs = [x + y, sg.sum(x, axis=0), sg.max(x, axis=1), x.T * 1, x[::-1, 1::2] + 0]
    f = compiled(outputs, [x, y])
    values = np.linspace(-2, 2, 15, dtype="float32").reshape(3, 5)
    arrange = LAYOUTS[layout]
    want = [
        values + values[0], values.sum(0), values.max(1), values.T, values[::-1, 1::2]
    ]  # fmt: skip
    for left, right in zip(f(arrange(values), arrange(values[0])), want, strict=True):
        assert_ulp(left, right, 8)


def test_symbolic_sizes_of_every_kind():
    x, y = sg.input("x", ("n", "m")), sg.input("y", ("m",))
    outputs = [
        sg.tanh(x) + y,
        sg.sum(x * y, axis=1),
        sg.sum(x, axis=0),
        sg.logsumexp(sg.concatenate([x, sg.zeros((1, y.shape[0]))]), axis=0),
        sg.where(x > y, x, y),
        sg.sum(x) * 2,
        x / (x.shape[0] * x.shape[1] + 1),
    ]
    f = compiled(outputs, [x, y])
    reference = sg.compile(outputs, inputs=[x, y], target="reference")
    for n, m in SIZES:
        a = np.linspace(-2, 3, n * m, dtype="float32").reshape(n, m)
        b = np.linspace(-1, 1, m, dtype="float32")
        for left, right in zip(f(a, b), reference(a, b), strict=True):
            np.testing.assert_allclose(left, right, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", CHAINS)
def test_composites_equal_the_reference(name):
    x = sg.input("x", ("n", 7))
    y = CHAINS[name](x)
    f = compiled(y, [x])
    reference = sg.compile(y, inputs=[x], target="reference")
    for rows in (1, 40):
        value = np.random.default_rng(rows).normal(0, 3, (rows, 7)).astype("float32")
        value[0, :2] = 0
        got, want = f(value), reference(value)
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_sums_over_many_chunks():
    x = sg.input("x", ("n", 40))
    outputs = [sg.sum(x), sg.sum(x, axis=0), sg.max(x), sg.sum(sg.softmax(x), axis=0)]
    f = compiled(outputs, [x])
    reference = sg.compile(outputs, inputs=[x], target="reference")
    value = np.random.default_rng(0).normal(size=(600, 40)).astype("float32")
    for left, right in zip(f(value), reference(value), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-4)


TURNED = {
    "matrix": (lambda x: x.T, (40, 33), "float64"),
    "backwards": (lambda x: x[::-1].T, (40, 33), "float32"),
    "batch": (lambda x: sg.transpose(x, (0, 2, 1)), ("n", 5, 70), "float32"),
    "images": (lambda x: sg.transpose(x, (0, 2, 3, 1)), ("n", 3, 9, 33), "int32"),
    "far": (lambda x: sg.transpose(x, (0, 3, 2, 1)), (4, 9, 3, 33), "float32"),
}


@pytest.mark.parametrize("name", TURNED)
def test_copies_that_turn_axes_go_by_tiles(name):
    make, shape, dtype = TURNED[name]
    x = sg.input("x", shape, dtype=dtype)
    for block in (32, 64, 256):
        device = EmulatedDevice(block)
        device.block = block
        f = compiled(make(x), [x], device)
        assert "by tile" in f.explain()
        reference = sg.compile(make(x), inputs=[x], target="reference")
        for rows in (7, 1, 0) if shape[0] == "n" else shape[:1]:
            value = np.random.default_rng(rows).normal(0, 9, (rows, *shape[1:]))
            value = value.astype(dtype)
            np.testing.assert_array_equal(f(value), reference(value))


def test_a_convolution_of_images_and_its_gradients():
    x, w = sg.input("x", ("n", 3, 12, 12)), sg.input("w", (5, 3, 3, 3))
    y = sg.nn.max_pool2d(sg.nn.conv2d(x, w, padding=1), 2)
    outputs = [y, *sg.grad(sg.sum(y * y), [x, w])]
    f = compiled(outputs, [x, w])
    reference = sg.compile(outputs, inputs=[x, w], target="reference")
    rng = np.random.default_rng(0)
    a = rng.normal(size=(2, 3, 12, 12)).astype("float32")
    b = rng.normal(size=(5, 3, 3, 3)).astype("float32")
    for got, want in zip(f(a, b), reference(a, b), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_gradients_of_gradients():
    x = sg.input("x", (3, 4), dtype="float64")
    y = sg.sum(sg.tanh(x @ x.T) * sg.sin(x[:, :3]))
    first = sg.grad(y, x)
    second = sg.grad(sg.sum(first * first), x)
    f = compiled([first, second], [x])
    reference = sg.compile([first, second], inputs=[x], target="reference")
    value = np.linspace(-1, 1, 12).reshape(3, 4)
    for left, right in zip(f(value), reference(value), strict=True):
        assert_near(left, right)


def test_outputs_that_are_leaves_or_named_twice():
    x = sg.input("x", (3,))
    w = sg.parameter(np.arange(3.0), name="w")
    y = x * 2
    f = compiled([y, w, y, x], [x], updates=[(w, w + 1)], mode="train")
    a, b, c, d = f([1, 2, 3])
    np.testing.assert_array_equal(a, c)
    np.testing.assert_array_equal(b, [0, 1, 2])
    np.testing.assert_array_equal(d, [1, 2, 3])
    np.testing.assert_array_equal(w.value, [1, 2, 3])


def test_an_index_into_nothing_and_one_out_of_range():
    x, i = sg.input("x", ("n",)), sg.input("i", ("k",), dtype="int64")
    f = compiled(sg.take(x, i, axis=0), [x, i])
    with pytest.raises(sg.IndexOutOfRange, match="axis of size 0"):
        f(np.zeros(0, "float32"), np.zeros(1, np.int64))
    with pytest.raises(sg.IndexOutOfRange, match="got -4 at position 1"):
        f(np.zeros(3, "float32"), np.array([2, -4, 9]))
    assert f(np.arange(3), np.array([-1, 0])).tolist() == [2, 0]


def test_explain_source_memory_bind_and_repeat():
    x = sg.input("x", (2, 3))
    s = sg.state(0.0, name="s")
    f = compiled(sg.sum(sg.exp(x)), [x], updates=[(s, s + 1)], mode="train")
    assert "target cuda, emulator" in f.explain()
    assert "libdevice.expf" in f.source()
    assert f.memory.arena_bytes >= 0
    value = np.zeros((2, 3), "float32")
    bound = f.bind(value)
    assert bound() == 6
    value[0, 0] = 1
    assert bound.repeat(3) == pytest.approx(5 + np.e)
    assert s.value == 4
