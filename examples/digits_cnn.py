"""A convolutional network on scikit-learn's handwritten digits.

1,797 real 8x8 images. Two convolutions with batch normalisation, pools and a linear
layer, about 15,000 parameters, trained with Adam in one native call; then its
predictions are compared with the NumPy reference, and images that are shifted by a
pixel are classified as well: what pools are for.
Run: ``python examples/digits_cnn.py [--short]``.
"""

import argparse
import time

import digits
import numpy as np

import staticgrad as sg

BATCH = 32


def load():
    """Training and held-out images (n, 1, 8, 8) in 0..1: those of ``digits.py``."""
    train, held_out = digits.load()
    for part in (train, held_out):
        part["x"] = part["x"].reshape(-1, 1, 8, 8)
    return train, held_out


def build():
    """Logits, loss, accuracy and the model."""
    with sg.Graph(seed=0):
        x = sg.input("x", ("batch", 1, 8, 8))
        y = sg.input("y", ("batch",), dtype="int64")
        model = sg.nn.Sequential(
            sg.nn.Conv2d(1, 16, 3, padding=1, bias=False),
            sg.nn.BatchNorm2d(16),
            sg.nn.ReLU(),
            sg.nn.Conv2d(16, 32, 3, padding=1),
            sg.nn.ReLU(),
            sg.nn.MaxPool2d(2),
            sg.nn.Conv2d(32, 32, 3, padding=1),
            sg.nn.ReLU(),
            sg.nn.AvgPool2d(2),
            sg.nn.Flatten(),
            sg.nn.Linear(32 * 2 * 2, 10),
        )
        logits = model(x)
        loss = sg.nn.cross_entropy(logits, y)
        accuracy = sg.metrics.accuracy(logits, y)
    return logits, loss, accuracy, model


def shifted(images, down, right):
    """The images moved by whole pixels; what leaves one side is lost."""
    moved = np.zeros_like(images)
    rows, columns = images.shape[2:]
    moved[:, :, max(down, 0) : rows + down, max(right, 0) : columns + right] = images[
        :, :, max(-down, 0) : rows - down, max(-right, 0) : columns - right
    ]
    return moved


def score(predict, images, labels):
    """The share of images whose digit is found."""
    return float(np.mean(predict(x=images).argmax(axis=1) == labels))


def main():
    """Load, build, train, check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="a few epochs only")
    options = parser.parse_args()
    epochs, goal = (6, 0.94) if options.short else (25, 0.98)
    train, held_out = load()
    logits, loss, accuracy, model = build()
    trainer = sg.Trainer(
        loss, optimizer=sg.optim.Adam(2e-3), metrics={"accuracy": accuracy}
    )
    start = time.perf_counter()
    history = trainer.fit(
        train, epochs=epochs, batch_size=BATCH, seed=1, validation=held_out
    )
    seconds = time.perf_counter() - start
    steps = epochs * -(-len(train["y"]) // BATCH)
    count = sum(p.value.size for p in model.parameters().values())
    print(f"parameters        {count:,}")
    print(f"arena             {trainer.memory.arena_bytes:,} bytes")
    print(f"unplanned         {trainer.memory.unplanned_bytes:,} bytes")
    took = seconds / steps * 1e6
    print(f"time per step     {took:.0f} us, compiling and validation included")

    predict = sg.compile(logits)
    found = score(predict, held_out["x"], held_out["y"])
    print(f"accuracy          {found:.2%} on {len(held_out['y'])} held-out digits")
    moves = [(0, 1), (0, -1), (1, 0), (-1, 0)]
    moved = np.mean(
        [score(predict, shifted(held_out["x"], *m), held_out["y"]) for m in moves]
    )
    print(f"shifted           {moved:.2%} when moved by one pixel")

    few = held_out["x"][:16]
    oracle = sg.compile(logits, target="reference")(x=few)
    assert np.allclose(predict(x=few), oracle, rtol=1e-4, atol=1e-4)
    assert found >= goal, f"{found:.2%} is below {goal:.0%}"
    assert moved >= 0.5, f"{moved:.2%} of shifted digits"
    assert np.isclose(found, history["val_accuracy"][-1], atol=1e-6)
    assert history["loss"][-1] < history["loss"][0] / 5


if __name__ == "__main__":
    main()
