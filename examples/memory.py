"""Memory: what training keeps, what inference does not, and less of it for some time.

Arenas of one network: inference beside training, checkpoints, a budget that is met or
refused, dropout that draws the same masks again. Run:
``python examples/memory.py [--short] [--out FOLDER]``.
"""

import argparse
from pathlib import Path

import numpy as np

import staticgrad as sg

WIDTH, LAYERS, SAMPLES = 64, 24, 256


def network(x, checkpointed=False, dropout=0.1):
    """Layers in groups of four; their parameters and the mean square at the end."""
    parameters, h = [], x

    def group(h, layers):
        for layer in layers:
            h = sg.tanh(layer(h))
        return sg.nn.Dropout(dropout)(h) if dropout else h

    for number in range(LAYERS // 4):
        layers = [sg.nn.Linear(WIDTH, WIDTH) for _ in range(4)]
        parameters += [p for layer in layers for p in layer.parameters().values()]

        def run(h, layers=layers):
            return group(h, layers)

        with sg.scope(f"group{number}"):
            h = sg.checkpoint(run)(h) if checkpointed else run(h)
    return parameters, sg.mean(h * h)


def gradients(checkpointed=False, budget=None, dropout=0.1):
    """An executable of loss and gradients."""
    with sg.Graph(seed=0):
        x = sg.input("x", (SAMPLES, WIDTH))
        parameters, loss = network(x, checkpointed, dropout)
        grads = sg.grad(loss, parameters)
    return sg.compile(
        [loss, grads], inputs=[x], mode="train", sizes={}, seed=0, memory_budget=budget
    )


def inference():
    """An executable of the same loss: nothing waits for a backward pass."""
    with sg.Graph(seed=0):
        x = sg.input("x", (SAMPLES, WIDTH))
        _, loss = network(x)
    return sg.compile(loss, inputs=[x], sizes={})


def attainable():
    """The least budget, which a refusal names."""
    try:
        gradients(budget="1KB")
    except sg.MemoryBudgetError as error:
        print(f"refused: {error}")
        return str(error)
    raise AssertionError("a budget of 1 KB was accepted")


def main():
    """Print the arenas; check that the numbers are the same."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="the same: it is short")
    parser.add_argument("--out", default="memory_out", type=Path, help="SVG folder")
    options = parser.parse_args()
    data = np.random.default_rng(0).normal(size=(SAMPLES, WIDTH)).astype(np.float32)
    found = {
        "inference": inference(),
        "training": gradients(),
        "checkpoints": gradients(checkpointed=True),
        "budget": gradients(budget="900KB"),
    }
    bytes_of = {name: f.memory.arena_bytes for name, f in found.items()}
    for name, count in bytes_of.items():
        print(f"{name:12} {count:9,} bytes")
    assert bytes_of["inference"] < 0.2 * bytes_of["training"]
    assert bytes_of["checkpoints"] < 0.7 * bytes_of["training"]
    assert bytes_of["budget"] <= 900_000
    attainable()

    loss, grads = found["training"](data)
    for name in ("checkpoints", "budget"):  # the masks of dropout are the same masks
        again, others = found[name](data)
        np.testing.assert_allclose(again, loss, rtol=1e-6)
        for one, other in zip(grads, others, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-7)
    options.out.mkdir(parents=True, exist_ok=True)
    for name in ("training", "budget"):
        found[name].memory.render(options.out / f"{name}.svg")
    print(f"pictures     {options.out}/training.svg, budget.svg")


if __name__ == "__main__":
    main()
