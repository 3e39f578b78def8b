"""The main job: scikit-learn's handwritten digits, trained in one native call.

1,797 real 8x8 images, a 64-128-64-10 network, Adam, >= 97 % accuracy on a held-out
quarter. Writes the graph, the memory plan and the curves as SVG and prints what the
compiler made. Run: ``python examples/digits.py [--short] [--out FOLDER]``.
"""

import argparse
import time
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

import staticgrad as sg

BATCH = 32
SPLIT = 6  # accuracy on the held-out quarter is 97 to 99 % depending on the shuffle


def load():
    """Training and held-out data, pixels scaled to 0..1, split by a fixed shuffle."""
    digits = load_digits()
    order = np.random.default_rng(SPLIT).permutation(len(digits.target))
    images = (digits.data[order] / 16).astype(np.float32)
    labels = digits.target[order].astype(np.int64)
    held_out = len(labels) // 4
    train = {"x": images[held_out:], "y": labels[held_out:]}
    return train, {"x": images[:held_out], "y": labels[:held_out]}


def build():
    """The graph, its logits, loss and accuracy."""
    with sg.Graph(seed=0) as graph:
        x = sg.input("x", ("batch", 64))
        y = sg.input("y", ("batch",), dtype="int64")
        model = sg.nn.Sequential(
            sg.nn.Linear(64, 128),
            sg.nn.ReLU(),
            sg.nn.Dropout(0.3),
            sg.nn.Linear(128, 64),
            sg.nn.ReLU(),
            sg.nn.Linear(64, 10),
        )
        logits = model(x)
        loss = sg.nn.cross_entropy(logits, y)
        accuracy = sg.metrics.accuracy(logits, y)
    return graph, logits, loss, accuracy


def plot(history, path):
    """Loss and accuracy against the epoch."""
    from matplotlib.figure import Figure  # noqa: PLC0415  # heavy, for this only

    figure = Figure(figsize=(9, 3.5), layout="constrained")
    for axis, name in zip(figure.subplots(1, 2), ("loss", "accuracy"), strict=True):
        axis.plot(history[name], label="training")
        axis.plot(history[f"val_{name}"], label="held out")
        axis.set(xlabel="epoch", title=name)
        axis.legend()
    figure.savefig(path)


def report(trainer, batch, steps, seconds):
    """Print what was compiled and how fast it ran."""
    memory = trainer.memory
    print(f"kernels           {len(memory.plan.schedule.kernels)}")
    print(f"arena             {memory.arena_bytes:,} bytes")
    print(f"lower bound       {memory.lower_bound_bytes:,} bytes")
    print(f"unplanned         {memory.unplanned_bytes:,} bytes")
    took = seconds / steps * 1e6
    print(f"time per step     {took:.1f} us, compiling and validation included")
    profile = trainer.profile(100, **batch)
    shares = (f"{name} {s / profile.seconds:.0%}" for name, s in profile.roles.items())
    print(f"of which          {', '.join(shares)}")


def main():
    """Load, build, train, check, draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="a few epochs only")
    parser.add_argument("--out", default="digits_out", type=Path, help="SVG folder")
    options = parser.parse_args()
    epochs, goal = (8, 0.9) if options.short else (60, 0.97)
    train, held_out = load()
    graph, logits, loss, accuracy = build()
    trainer = sg.Trainer(
        loss, optimizer=sg.optim.Adam(2e-3), metrics={"accuracy": accuracy}
    )
    untrained = trainer.evaluate(held_out)
    start = time.perf_counter()
    history = trainer.fit(train, epochs=epochs, batch_size=BATCH, validation=held_out)
    seconds = time.perf_counter() - start
    batch = {name: array[:BATCH] for name, array in train.items()}
    report(trainer, batch, epochs * -(-len(train["y"]) // BATCH), seconds)

    predict = sg.compile(logits)
    guess = predict(x=held_out["x"]).argmax(axis=1)
    score = np.mean(guess == held_out["y"])
    print(f"untrained         {untrained['accuracy']:.2%}")
    print(f"accuracy          {score:.2%} on {len(guess)} held-out digits")
    options.out.mkdir(parents=True, exist_ok=True)
    sg.render(graph, options.out / "graph.svg")
    trainer.memory.render(options.out / "memory.svg")
    plot(history, options.out / "curves.svg")
    print(f"pictures          {options.out}/graph.svg, memory.svg, curves.svg")
    assert score >= goal, f"{score:.2%} is below {goal:.0%}"
    assert np.isclose(score, history["val_accuracy"][-1], atol=1e-6)


if __name__ == "__main__":
    main()
