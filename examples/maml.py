"""Learning to learn from five points: MAML, whose inner step is a substitution.

Tasks are sine curves of random amplitude and phase. A network is trained so that one
step of gradient descent on five points of a new curve makes it fit that curve. The
inner step is ``sg.substitute``: the same loss with w - rate * dloss/dw in the place of
w, in one graph with the outer loss, which is derived through it. A network that was
trained on all curves alike cannot do that. Source: Finn, Abbeel and Levine,
Model-agnostic meta-learning for fast adaptation of deep networks (2017).
Run: ``python examples/maml.py [--short]``.
"""

import argparse

import numpy as np

import staticgrad as sg

SHOTS = 5
TASKS = 25  # curves in a step of the outer loop
RATE = 0.02  # of the inner step


def curves(rng, tasks, points=2 * SHOTS):
    """Inputs and values (tasks, points, 1) of curves that differ by task."""
    amplitude = rng.uniform(0.1, 5.0, (tasks, 1, 1))
    phase = rng.uniform(0.0, np.pi, (tasks, 1, 1))
    x = rng.uniform(-5.0, 5.0, (tasks, points, 1))
    return x.astype(np.float32), (amplitude * np.sin(x - phase)).astype(np.float32)


def data(rng, tasks):
    """Five points to learn from, and others to be judged by, for each task."""
    x, y = curves(rng, tasks, SHOTS + 10)
    return {
        "x": x[:, :SHOTS], "y": y[:, :SHOTS], "new_x": x[:, SHOTS:],
        "new_y": y[:, SHOTS:],
    }  # fmt: skip


def stepped(loss, weights):
    """Return the replacements of the weights: one step of descent on `loss`."""
    slopes = sg.grad(loss, weights)
    return {w: w - RATE * slopes[name] for name, w in weights.items()}


def build():
    """The model, and the mean losses over tasks before and after the inner step."""
    with sg.Graph(seed=0):
        shapes = {"x": SHOTS, "y": SHOTS, "new_x": "new", "new_y": "new"}
        inputs = [sg.input(n, ("batch", size, 1)) for n, size in shapes.items()]
        model = sg.nn.Sequential(
            sg.nn.Linear(1, 40), sg.nn.Tanh(), sg.nn.Linear(40, 40), sg.nn.Tanh(),
            sg.nn.Linear(40, 1),
        )  # fmt: skip
        model(inputs[0])  # which names the parameters

        def task(x, y, new_x, new_y):
            known = sg.nn.mse_loss(model(x), y)
            asked = sg.nn.mse_loss(model(new_x), new_y)
            return asked, sg.substitute(asked, stepped(known, model.parameters()))

        before, after = sg.vmap(task)(*inputs)
        return model, sg.mean(before), sg.mean(after)


def trained(meta, steps):
    """The scores on new curves after `steps` of meta-training, or of plain training."""
    _, before, after = build()
    loss, other = (after, before) if meta else (before, after)
    name = "before" if meta else "after"
    trainer = sg.Trainer(loss, sg.optim.Adam(2e-3), metrics={name: other})
    samples = data(np.random.default_rng(0), TASKS * steps)
    trainer.fit(samples, batch_size=TASKS, progress=False)
    scores = trainer.evaluate(data(np.random.default_rng(1), 500))
    return (scores[name], scores["loss"])[:: 1 if meta else -1]


def main():
    """Train both ways, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="fewer steps")
    steps = 1500 if parser.parse_args().short else 8000
    plain, learner = trained(False, steps), trained(True, steps)
    for name, (before, after) in (("plain", plain), ("meta-trained", learner)):
        print(f"{name:13} loss on new curves {before:.3f}, after one step {after:.3f}")
    assert learner[1] < 0.6 * learner[0]
    assert learner[1] < 0.5 * plain[1]


if __name__ == "__main__":
    main()
