"""Features of a training loop: accumulation, clipping, checks, schedules, phases.

* micro-batches that add up to a batch, a tail that counts right
* clipping of exploding gradients, and the share of clipped steps as a symptom
* a NaN in the data: an error that names the line, or a step that is skipped
* warm-up and cosine in the compiled loop
* two losses, two optimisers: a generator and its critic, trained in turns
* two gradients in one step, aggregated by hand

Run: ``python examples/training_features.py [--short]``.
"""

import argparse

import numpy as np

import staticgrad as sg

RNG = np.random.default_rng(0)
X = RNG.standard_normal((70, 3)).astype(np.float32)
Y = (X @ [1.0, -2.0, 0.5] + 3).astype(np.float32)
DATA = {"x": X, "y": Y}


def regression(optimizer, **options):
    """A trainer of a linear model, and its weights."""
    with sg.Graph(seed=0):
        x, y = sg.input("x", ("batch", 3)), sg.input("y", ("batch",))
        w = sg.parameter(np.zeros(3, np.float32), name="w")
        b = sg.parameter(np.float32(0), name="b")
        loss = sg.mean((x @ w + b - y) ** 2)
    return sg.Trainer(loss, optimizer, **options), w


def accumulation():
    """Batches of 28 at once, and as four micro-batches of 7; 70 leaves a tail of 14."""
    found = []
    for size, count in ((28, 1), (7, 4)):
        trainer, w = regression(sg.optim.Adam(0.1), accumulate=count)
        trainer.fit(DATA, epochs=20, batch_size=size, progress=False)
        found.append(w.value)
    difference = np.abs(found[0] - found[1]).max()
    print(f"accumulation: weights differ by {difference:.1e}")
    assert difference < 1e-5


def recurrence(bound):
    """A trainer of twelve equal steps, whose gradient explodes, and their factor."""
    with sg.Graph():
        x = sg.input("x", ("batch",))
        w = sg.parameter(np.float32(1.5), name="w")
        h = x
        for _ in range(12):
            h = h * w
        loss = sg.mean((h - x) ** 2)
    clip = None if bound is None else sg.optim.clip_by_global_norm(bound)
    return sg.Trainer(loss, sg.optim.SGD(0.01), clip=clip, on_nonfinite="skip"), w


def clipping():
    """Training with and without a bound on the norm of the gradient."""
    found = {}
    for bound in (None, 1.0):
        trainer, _ = recurrence(bound)
        history = trainer.fit({"x": np.ones(8)}, epochs=60, progress=False)
        found[bound] = history["loss"][-1]
        if bound is not None:
            share = history["clipped"].mean()
    print(f"clipping: loss {found[None]:.2e} without, {found[1.0]:.2e} with a bound")
    print(f"  clipped in {share:.0%} of the steps: the step size is the problem")
    assert found[1.0] < 1e-2
    assert np.isnan(found[None])  # no step of the last epoch had a finite loss


def checks():
    """One NaN in the data."""
    bad = {"x": X.copy(), "y": Y}
    bad["x"][33, 1] = np.nan
    trainer, w = regression(sg.optim.SGD(0.1))
    try:
        trainer.fit(bad, epochs=1, batch_size=10, shuffle=False, progress=False)
    except sg.NonFiniteError as error:
        print(f"check_finite: {error}")
    assert np.isfinite(w.value).all()
    trainer, w = regression(sg.optim.SGD(0.1), on_nonfinite="skip")
    history = trainer.fit(bad, epochs=30, batch_size=10, shuffle=False, progress=False)
    print(f"  skipped {history['skipped'][0]:.3f} of the steps, w = {w.value.round(2)}")
    assert history["skipped"].tolist() == [1 / 7] * 30
    assert np.allclose(w.value, [1, -2, 0.5], atol=0.05)
    trainer, w = regression(sg.optim.SGD(0.01), on_nonfinite="replace")
    history = trainer.fit(bad, epochs=30, batch_size=10, shuffle=False, progress=False)
    print(f"  replaced in {history['replaced'][0]:.3f} of the steps")
    assert history["replaced"].tolist() == [1 / 7] * 30
    assert np.isfinite(w.value).all()


def warming_up(steps):
    """Momentum with a rate that rises for a quarter of the steps, then falls."""
    rate = sg.optim.cosine(0.3, steps=steps, warmup=steps // 4)
    return sg.optim.Momentum(rate, 0.8)


def schedules(epochs):
    """Warm-up and cosine; the rate is recorded because it changes."""
    steps = 7 * epochs
    trainer, w = regression(warming_up(steps))
    history = trainer.fit(DATA, epochs=epochs, batch_size=10, progress=False)
    rates = history["learning_rate"]
    print(f"schedule: rates {rates[0]:.3f} .. {rates.max():.3f} .. {rates[-1]:.4f}")
    assert rates[0] < rates.max() > 5 * rates[-1]
    assert np.allclose(w.value, [1, -2, 0.5], atol=0.05)


def in_turns():
    """A trainer of a critic and of what it judges; both, and the data."""
    with sg.Graph(seed=3):
        real = sg.input("real", ("batch", 1))
        noise = sg.input("noise", ("batch", 1))
        shift = sg.parameter(np.float32([0.0]), name="shift")
        critic = sg.nn.Sequential(
            sg.nn.Linear(1, 16), sg.nn.Tanh(), sg.nn.Linear(16, 1)
        )
        made = noise + shift
        bce = sg.nn.binary_cross_entropy_with_logits
        ones, zeros = sg.ones_like(real), sg.zeros_like(real)
        of_critic = bce(critic(real), ones) + bce(critic(sg.stop_gradient(made)), zeros)
        of_shift = bce(critic(made), ones)
    trainer = sg.Trainer(
        {
            "critic": (of_critic, sg.optim.Adam(0.02), critic.parameters()),
            "generator": (of_shift, sg.optim.Adam(0.02, betas=(0.5, 0.9)), shift),
        }
    )
    data = {
        "real": 2 + RNG.standard_normal((2048, 1)),
        "noise": RNG.standard_normal((2048, 1)),
    }
    return trainer, critic, shift, data


def phases(steps):
    """A generator learns the mean of data from a critic that learns with it."""
    trainer, _, shift, data = in_turns()
    history = trainer.fit(data, batch_size=64, epochs=99, steps=steps, progress=False)
    print(f"phases: {', '.join(history)}; shift {shift.value[0]:.2f}, data's mean 2")
    assert abs(shift.value[0] - 2) < 0.5


def balanced():
    """A step that follows two losses alike, what it tells, and its weights."""
    with sg.Graph():
        x = sg.input("x", ("batch", 3))
        w = sg.parameter(np.float32([1, 1, 1]), name="w")
        out = x @ w
        large, small = sg.mean(out**2), 1e-3 * sg.mean((out - 1) ** 2)
        first, second = sg.grad(large, w), sg.grad(small, w)
        ratio = sg.linalg.norm(first) / sg.linalg.norm(second)
        pairs = sg.optim.SGD(0.05).updates(first + ratio * second, w)
    step = sg.compile(
        {"norms": [sg.linalg.norm(first), sg.linalg.norm(second)], "ratio": ratio},
        updates=pairs, mode="train",
    )  # fmt: skip
    return step, w


def two_losses():
    """Two tasks' gradients in one executable; the smaller one is scaled up."""
    step, _ = balanced()
    told = step(X)
    one, two = told["norms"]
    print(f"two losses: gradient norms {one:.2f} and {two:.5f}, balanced by a factor")
    assert np.isclose(told["ratio"] * two, one, rtol=1e-5)


def main():
    """Everything, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="fewer steps")
    short = parser.parse_args().short
    accumulation()
    clipping()
    checks()
    schedules(20 if short else 60)
    phases(800 if short else 2000)
    two_losses()


if __name__ == "__main__":
    main()
