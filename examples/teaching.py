"""Distillation, pruning and several tasks, on scikit-learn's handwritten digits.

A large network teaches a small one: the teacher takes no gradient, its soft answers and
the features of a layer are what the student imitates. Half of the weights of the
teacher are pruned by |w * dw|. Two tasks share a trunk, and their gradients are
combined by operations. Run: ``python examples/teaching.py [--short]``.
"""

import argparse
from itertools import pairwise

import digits
import numpy as np

import staticgrad as sg

SOFTNESS = 4.0  # the temperature of the teacher's answers


def images():
    """The inputs: digits (batch, 64) and their labels (batch,)."""
    return sg.input("x", ("batch", 64)), sg.input("y", ("batch",), dtype="int64")


def network(*widths):
    """Linear layers with relu between them."""
    layers = []
    for before, after in pairwise(widths):
        layers += [sg.nn.Linear(before, after), sg.nn.ReLU()]
    return sg.nn.Sequential(*layers[:-1])


def fitted(loss, metrics, train, held_out, epochs, parameters=None, rate=2e-3):
    """The held-out accuracy after training."""
    optimizer = sg.optim.Adam(rate)
    trainer = sg.Trainer(loss, optimizer, parameters, metrics=metrics)
    trainer.fit(train, epochs=epochs, batch_size=64, progress=False)
    return trainer.evaluate(held_out)


def large_network(x):
    """The teacher's trunk and head, what its trunk sees, its answers."""
    with sg.Graph(seed=0):
        trunk, head = network(64, 128, 64), network(64, 10)
        features = sg.relu(trunk(x))
        return trunk, head, features, head(features)


def small_network(x, y, teacher_features, teacher_answers):
    """The student's loss, of labels and of what the teacher says; its accuracy.

    Its three parts are trained: trunk, head, and what turns the trunk's features into
    the teacher's.
    """
    with sg.Graph(seed=1):
        trunk, head, align = network(64, 32), network(32, 10), sg.nn.Linear(32, 64)
        features = sg.relu(trunk(x))
        student = head(features)
        answers = sg.stop_gradient(sg.nn.softmax(teacher_answers / SOFTNESS, axis=-1))
        soft = -sg.mean(sg.sum(
            answers * sg.nn.log_softmax(student / SOFTNESS, axis=-1), axis=-1
        ))  # fmt: skip
        imitated = sg.mean((align(features) - sg.stop_gradient(teacher_features)) ** 2)
        hard = sg.nn.cross_entropy(student, y)
        loss = hard + SOFTNESS**2 * soft + imitated
        accuracy = sg.metrics.accuracy(student, y)
    return loss, accuracy, (trunk, head, align)


def distil(train, held_out, epochs):
    """Teacher and student, taught: their accuracies."""
    x, y = images()
    teacher_trunk, teacher_head, features, answers = large_network(x)
    loss = sg.nn.cross_entropy(answers, y)
    metrics = {"accuracy": sg.metrics.accuracy(answers, y)}
    taught = fitted(loss, metrics, train, held_out, epochs)
    frozen = teacher_head.parameters()["0.weight"]
    before = frozen.value
    loss, accuracy, modules = small_network(x, y, features, answers)
    assert not sg.explain_gradient(loss, frozen)
    own = [module.parameters() for module in modules]
    score = fitted(loss, {"accuracy": accuracy}, train, held_out, epochs, own, 8e-3)
    np.testing.assert_array_equal(frozen.value, before)
    print(
        f"teacher {taught['accuracy']:.1%}, student of 32 units {score['accuracy']:.1%}"
    )
    assert score["accuracy"] > 0.9
    return teacher_trunk, teacher_head, x, y, taught["accuracy"]


def saliency(trunk, head, loss):
    """The weights of both parts, and |w * dw| of each."""
    found = {**trunk.parameters(), **_prefixed("head", head.parameters())}
    weights = {name: p for name, p in found.items() if name.endswith("weight")}
    grads = sg.grad(loss, weights)
    return weights, {name: sg.absolute(p * grads[name]) for name, p in weights.items()}


def _prefixed(prefix, tree):
    return {f"{prefix}.{name}": value for name, value in tree.items()}


def prune(trunk, head, x, y, train, held_out, full):
    """Half of the weights go, by |w * dw| over the training data."""
    logits = head(sg.relu(trunk(x)))
    weights, score = saliency(trunk, head, sg.nn.cross_entropy(logits, y))
    saliency_of = sg.compile(score)(**train)
    limit = np.median(np.concatenate([s.ravel() for s in saliency_of.values()]))
    for name, p in weights.items():
        p.value = np.where(saliency_of[name] > limit, p.value, 0)
    left = np.mean(np.concatenate([p.value.ravel() != 0 for p in weights.values()]))
    accuracy = sg.metrics.accuracy(logits, y)
    pruned = float(sg.compile(accuracy)(**held_out))
    print(f"pruned to {left:.0%} of the weights: {full:.1%} -> {pruned:.1%}")
    assert 0.45 < left < 0.55
    assert pruned > full - 0.05


def two_tasks(x, y):
    """The losses, the norms of their gradients in the trunk, updates, accuracies."""
    with sg.Graph(seed=0):
        trunk, digit, parity = network(64, 64), network(64, 10), network(64, 2)
        h = sg.relu(trunk(x))
        losses = {
            "digit": sg.nn.cross_entropy(digit(h), y),
            "parity": sg.nn.cross_entropy(parity(h), y % 2),
        }
        shared = list(trunk.parameters().values())
        per_task = {name: sg.grad(loss, shared) for name, loss in losses.items()}
        norms = {
            name: sg.sqrt(sum(sg.sum(g * g) for g in gs))
            for name, gs in per_task.items()
        }
        # each task moves the trunk by a gradient of the same length
        balanced = [
            a / (norms["digit"] + 1e-6) + b / (norms["parity"] + 1e-6)
            for a, b in zip(per_task["digit"], per_task["parity"], strict=True)
        ]
        own = {
            "digit": list(digit.parameters().values()),
            "parity": list(parity.parameters().values()),
        }
        grads, wrt = list(balanced), list(shared)
        for name, parameters in own.items():
            grads += sg.grad(losses[name], parameters)
            wrt += parameters
        updates = sg.optim.Adam(2e-3).updates(grads, wrt)
        scores = {
            "digit": sg.metrics.accuracy(digit(h), y),
            "parity": sg.metrics.accuracy(parity(h), y % 2),
        }
    return losses, norms, updates, scores


def tasks(train, held_out, epochs):
    """Two losses, two gradients of the shared trunk, one update."""
    x, y = images()
    losses, norms, updates, scores = two_tasks(x, y)
    step = sg.compile({**losses, "norms": norms}, inputs=[x, y], updates=updates)
    rng = np.random.default_rng(0)
    count = len(train["y"])
    for _ in range(epochs):
        order = rng.permutation(count)
        for first in range(0, count, 64):
            rows = order[first : first + 64]
            last = step(x=train["x"][rows], y=train["y"][rows])
    found = {k: round(float(v), 3) for k, v in sg.compile(scores)(**held_out).items()}
    print(f"two tasks on one trunk: {found}, norms "
          f"{ {k: round(float(v), 3) for k, v in last['norms'].items()} }")  # fmt: skip
    assert min(found.values()) > 0.88


def main():
    """All three."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="fewer epochs")
    options = parser.parse_args()
    epochs = 12 if options.short else 40
    train, held_out = digits.load()
    *teacher, full = distil(train, held_out, epochs)
    prune(*teacher, train, held_out, full)
    tasks(train, held_out, epochs)


if __name__ == "__main__":
    main()
