"""Branches and loops as native code: lazy, differentiable, short of memory.

A piecewise loss whose other branch never runs; a pendulum whose length is found from
its track, through 2,000 steps of an integrator, with 45 states in memory; a root found
by Newton's method and its derivative, through a loop of unknown length; an LSTM that
remembers. Run: ``python examples/control_flow.py [--short]``.
"""

import argparse

import numpy as np

import staticgrad as sg


def piecewise(x, w):
    """w sqrt(x) or log(-x), whichever exists."""
    return sg.cond(x > 0, lambda: w * sg.sqrt(x), lambda: sg.log(-x))


def branches():
    """Only the branch that is taken runs, and only it has a gradient."""
    x, w = sg.input("x", ()), sg.parameter(2.0, name="w")
    y = piecewise(x, w)
    f = sg.compile({"y": y, "grad": sg.grad(y, [x, w])}, inputs=[x])
    positive, negative = f(4.0), f(-1.0)
    print(f"x = 4: y {positive['y']}, dy/dx {positive['grad'][0]}, "
          f"dy/dw {positive['grad'][1]}")  # fmt: skip
    assert [float(g) for g in positive["grad"]] == [0.5, 2.0]
    assert [float(g) for g in negative["grad"]] == [-1.0, 0.0]
    # the other branch would go on for ever
    z = sg.cond(x > 0, lambda: x, lambda: sg.while_loop(lambda v: v < 1, abs, x))
    assert sg.compile(z)(3.0) == 3.0


def track(length, steps, checkpoints=None):
    """The angles of a pendulum, by the leapfrog method."""
    gravity, dt = 9.81, 0.002

    def step(state, _):
        angle, speed = state
        speed = speed - dt * gravity / length * sg.sin(angle)
        angle = angle + dt * speed
        return (angle, speed), angle

    start = (sg.constant(1.0, "float64"), sg.constant(0.0, "float64"))
    return sg.scan(step, start, length=steps, checkpoints=checkpoints)[1]


def misfit(steps):
    """A length, and how far its track is from that of another; also with few states."""
    length = sg.parameter(np.asarray(1.6), name="length")
    target = sg.compile(track(sg.constant(1.3, "float64"), steps))()
    loss = sg.mean((track(length, steps) - target) ** 2)
    few = sg.mean((track(length, steps, checkpoints=45) - target) ** 2)
    return length, loss, few


def pendulum(short):
    """Fit the length to the track; compare with few states kept."""
    steps = 200 if short else 2000
    length, loss, few = misfit(steps)
    wanted, got = sg.compile([sg.grad(loss, length), sg.grad(few, length)])()
    assert wanted == got  # the same bits
    trainer = sg.Trainer(loss, optimizer=sg.optim.Adam(0.02))
    trainer.fit({}, epochs=300)
    print(f"{steps} steps: length {float(length.value):.4f} of 1.3")
    assert abs(float(length.value) - 1.3) < 2e-2


def solved(a):
    """The x of x^3 + x = a, by Newton's method until it stands."""

    def better(state):
        x, _ = state
        new = x - (x**3 + x - a) / (3 * x**2 + 1)
        return new, abs(new - x)

    x, _ = sg.while_loop(
        lambda state: state[1] > 1e-13, better, (a, sg.constant(1.0, "float64")),
        max_steps=100,
    )  # fmt: skip
    return x


def root():
    """The derivative of a root, through the loop that found it."""
    a = sg.input("a", (), "float64")
    x = solved(a)
    f = sg.compile([x, sg.grad(x, a), sg.jvp(x, a, 1.0)])
    for value in (0.5, 3.0, 30.0):
        found, slope, tangent = (float(v) for v in f(value))
        implicit = 1 / (3 * found**2 + 1)  # of x^3 + x = a
        print(f"a = {value}: x = {found:.6f}, dx/da = {slope:.6f}")
        assert abs(found**3 + found - value) < 1e-11
        np.testing.assert_allclose([slope, tangent], implicit, rtol=1e-6)


def grown(x, n):
    """x doubled n times, but not beyond 10."""
    doubled = sg.fori_loop(0, n, lambda i, c: c * 2, x)
    return sg.cond(doubled > 10, lambda: 10.0 * sg.ones(()), lambda: doubled)


def rows():
    """Each example takes its own branch, and its own number of steps."""
    x, n = sg.input("x", ("rows",)), sg.input("n", ("rows",), "int64")
    found = sg.compile(sg.vmap(grown)(x, n), inputs=[x, n])([1.0, 1.0, 3.0], [0, 3, 5])
    print("rows:", found.tolist())
    assert found.tolist() == [1, 8, 10]


def remembering():
    """An LSTM, a head, and how far they are from the first number that was seen."""
    with sg.Graph(seed=0):
        x, y = sg.input("x", ("batch", 8, 1)), sg.input("y", ("batch",))
        model = sg.nn.LSTM(1, 12, batch_first=True)
        head = sg.nn.Linear(12, 1)
        loss = sg.mean((head(model(x)[0][:, -1])[:, 0] - y) ** 2)
    return model, head, loss


def memory(short):
    """An LSTM gives back the first number that it saw."""
    _, _, loss = remembering()
    data = np.random.default_rng(0).normal(size=(512, 8, 1)).astype(np.float32)
    trainer = sg.Trainer(loss, optimizer=sg.optim.Adam(0.02))
    history = trainer.fit(
        {"x": data, "y": data[:, 0, 0]}, epochs=20 if short else 60, batch_size=64,
        seed=0,
    )  # fmt: skip
    first, last = history["loss"][0], history["loss"][-1]
    print(f"LSTM: loss {first:.3f} -> {last:.4f}")
    assert last < (0.5 if short else 0.05) * first


def main():
    """All of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="fewer steps")
    short = parser.parse_args().short
    branches()
    pendulum(short)
    root()
    rows()
    memory(short)


if __name__ == "__main__":
    main()
