"""A tour in 30 seconds, through the public interface only, from easy to hard."""

import numpy as np
import pytest

import staticgrad as sg


def test_01_numbers_go_in_and_come_out():
    with sg.Graph():
        x = sg.input("x", (3,))
        y = x * 2 + 1
    f = sg.compile(y)
    assert f(x=[1, 2, 3]).tolist() == [3, 5, 7]
    assert f([0, 0, 0]).tolist() == [1, 1, 1]


def test_02_gradient_of_the_first_lesson():
    x = sg.parameter(2.0, name="x")
    assert float(sg.compile(sg.grad((3 * x) ** 2, x))()) == 36


def test_03_one_step_by_hand():
    """w=1, b=0, x=2, y=10: dL/dw -32, dL/db -16; SGD at 0.01: w 1.32, b 0.16."""
    w, b = sg.parameter(1.0, name="w"), sg.parameter(0.0, name="b")
    loss = (w * 2 + b - 10) ** 2
    grads = sg.grad(loss, {"w": w, "b": b})
    pairs = sg.optim.SGD(0.01).updates(grads, {"w": w, "b": b})
    step = sg.compile({"loss": loss, "grads": grads}, updates=pairs, mode="train")
    found = step()
    assert float(found["loss"]) == 64
    assert {n: float(g) for n, g in found["grads"].items()} == {"w": -32, "b": -16}
    np.testing.assert_allclose([w.value, b.value], [1.32, 0.16], rtol=1e-6)


def test_04_second_derivatives():
    x = sg.parameter([2.0, 3.0], name="x")
    first = sg.grad(sg.sum(x**3), x)
    second = sg.grad(sg.sum(first), x)
    got = sg.compile([first, second])()
    np.testing.assert_allclose(got, [[12, 27], [12, 18]], rtol=1e-6)


def test_05_numpy_functions_build_graph():
    with sg.Graph():
        x = sg.input("x", ("n", 4))
        y = np.exp(x - np.max(x, axis=1, keepdims=True))
        soft = y / np.sum(y, axis=1, keepdims=True)
    array = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
    expected = np.exp(array) / np.exp(array).sum(1, keepdims=True)
    np.testing.assert_allclose(sg.compile(soft)(x=array), expected, rtol=1e-5)


def test_06_one_compile_serves_every_batch_size():
    with sg.Graph():
        x = sg.input("x", ("batch", 8))
        y = sg.sum(sg.tanh(x @ sg.parameter(np.ones((8, 3), np.float32))))
    f = sg.compile(y)
    for n in (1, 7, 64, 0):
        array = np.full((n, 8), 0.1, np.float32)
        np.testing.assert_allclose(f(x=array), n * 3 * np.tanh(0.8), rtol=1e-5)


def test_07_every_target_agrees():
    with sg.Graph(seed=1):
        x = sg.input("x", ("batch", 5))
        y = sg.input("y", ("batch",), dtype="int64")
        model = sg.nn.Sequential(sg.nn.Linear(5, 7), sg.nn.Tanh(), sg.nn.Linear(7, 3))
        loss = sg.nn.cross_entropy(model(x), y)
    outputs = {"loss": loss, "grads": sg.grad(loss, model.parameters())}
    rng = np.random.default_rng(0)
    data = {"x": rng.standard_normal((9, 5)), "y": rng.integers(0, 3, 9)}
    cpu = sg.compile(outputs)(**data)
    reference = sg.compile(outputs, target="reference")(**data)
    np.testing.assert_allclose(cpu["loss"], reference["loss"], rtol=1e-5)
    for name, expected in reference["grads"].items():
        np.testing.assert_allclose(cpu["grads"][name], expected, rtol=1e-4, atol=1e-6)


def test_08_errors_say_what_where_and_what_to_do():
    with sg.Graph():
        x = sg.input("x", ("batch", 3))
        with pytest.raises(sg.ShapeError, match=r"matmul requires .*test_tiny\.py:"):
            x @ sg.constant(np.zeros((4, 2), np.float32))
        f = sg.compile(x * 2)
    with pytest.raises(sg.GraphError, match="x"):
        f()
    with pytest.raises(sg.ShapeError, match="float32"):
        f(x=np.zeros((2, 4), np.float32))
    with pytest.raises(sg.DTypeError, match="complex|float32"):
        f(x=np.zeros((2, 3), complex))


def test_09_a_state_counts_calls():
    with sg.Graph() as graph:
        count = sg.state(np.int64(0), name="count")
        sg.update(count, count + 1)
    f = sg.compile(count, updates=graph)
    assert [int(f()) for _ in range(3)] == [0, 1, 2]


def circles(samples):
    """Two rings, which no line divides."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, samples)
    angle = rng.uniform(0, 2 * np.pi, samples)
    radius = 1 + y + 0.1 * rng.standard_normal(samples)
    x = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return {"x": x.astype(np.float32), "y": y}


def make_trainer():
    with sg.Graph(seed=0) as graph:
        x = sg.input("x", ("batch", 2))
        y = sg.input("y", ("batch",), dtype="int64")
        model = sg.nn.Sequential(sg.nn.Linear(2, 16), sg.nn.ReLU(), sg.nn.Linear(16, 2))
        logits = model(x)
        loss = sg.nn.cross_entropy(logits, y)
        accuracy = sg.metrics.accuracy(logits, y)
    trainer = sg.Trainer(
        loss, optimizer=sg.optim.Adam(0.01), metrics={"accuracy": accuracy}
    )
    return graph, logits, trainer


def test_10_training_learns():
    _, logits, trainer = make_trainer()
    data = circles(500)
    history = trainer.fit(
        data, epochs=30, batch_size=32, validation=circles(90), progress=False
    )
    assert history["accuracy"][-1] > 0.97
    assert history["val_accuracy"][-1] > 0.97
    assert history["loss"].shape == (30,)
    assert history["loss"].dtype == np.float64
    guess = sg.compile(logits)(x=data["x"]).argmax(axis=1)
    assert np.mean(guess == data["y"]) == pytest.approx(
        trainer.evaluate(data)["accuracy"]
    )


def test_11_memory_is_planned_once_for_everything():
    _, _, trainer = make_trainer()
    batch = circles(64)
    trainer.step(**batch)
    memory = trainer.memory
    assert memory.lower_bound_bytes <= memory.arena_bytes < memory.unplanned_bytes


def test_12_a_bad_label_is_found_and_nothing_is_written():
    _, _, trainer = make_trainer()
    data = circles(100)
    data["y"][99] = 2
    with pytest.raises(sg.IndexOutOfRange, match=r"2.*test_tiny\.py:"):
        trainer.fit(data, batch_size=100, progress=False)
    data["y"][99] = 1
    assert np.isfinite(trainer.evaluate(data)["loss"])


def test_13_pictures(tmp_path):
    graph, _, trainer = make_trainer()
    sg.render(graph, tmp_path / "graph.svg")
    trainer.step(**circles(8))
    trainer.memory.render(tmp_path / "memory.svg")
    for name in ("graph.svg", "memory.svg"):
        assert "<svg" in (tmp_path / name).read_text()
