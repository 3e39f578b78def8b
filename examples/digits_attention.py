"""Attention on scikit-learn's handwritten digits: each row of pixels is a token.

Two transformer blocks over eight tokens, places that are learned, and the mean of what
comes out; about 18,000 parameters, trained in one native call.
Run: ``python examples/digits_attention.py [--short]``.
"""

import argparse

import digits
import numpy as np

import staticgrad as sg

FEATURES, HEADS, BLOCKS = 32, 4, 2


class Reader(sg.nn.Module):
    """Scores of ten digits (batch, 10) from rows of pixels (batch, 8, 8)."""

    def __init__(self):
        self.embed = sg.nn.Linear(8, FEATURES)
        start = 0.1 * np.random.default_rng(0).normal(size=(8, FEATURES))
        self.places = sg.parameter(start.astype(np.float32), name="places")
        self.blocks = [
            sg.nn.TransformerBlock(FEATURES, HEADS, 2 * FEATURES) for _ in range(BLOCKS)
        ]
        self.norm = sg.nn.LayerNorm(FEATURES)
        self.head = sg.nn.Linear(FEATURES, 10)

    def forward(self, x):
        h = self.embed(x) + self.places  # (batch, row, feature)
        for block in self.blocks:
            h = block(h)
        return self.head(sg.mean(self.norm(h), axis=1))


def build():
    """The model, its logits, loss and accuracy."""
    with sg.Graph(seed=0):
        x = sg.input("x", ("batch", 64))
        y = sg.input("y", ("batch",), dtype="int64")
        model = Reader()
        logits = model(sg.reshape(x, (-1, 8, 8)))
        loss = sg.nn.cross_entropy(logits, y)
        accuracy = sg.metrics.accuracy(logits, y)
    return model, logits, loss, accuracy


def main():
    """Train, score."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="fewer epochs")
    epochs, goal = (10, 0.85) if parser.parse_args().short else (40, 0.96)
    train, held_out = digits.load()
    model, logits, loss, accuracy = build()
    steps = epochs * -(-len(train["y"]) // 32)
    rate = sg.optim.cosine(3e-3, steps=steps, warmup=steps // 10)
    trainer = sg.Trainer(loss, sg.optim.AdamW(rate), metrics={"accuracy": accuracy})
    history = trainer.fit(train, epochs=epochs, batch_size=32, progress=False)
    found = trainer.evaluate(held_out)
    count = sum(p.value.size for p in model.parameters().values())
    print(f"parameters {count:,}, loss {history['loss'][0]:.2f} -> "
          f"{history['loss'][-1]:.3f}, accuracy {found['accuracy']:.2%} on "
          f"{len(held_out['y'])} held-out digits")  # fmt: skip
    few = held_out["x"][:16]
    oracle = sg.compile(logits, target="reference")(x=few)
    assert np.allclose(sg.compile(logits)(x=few), oracle, rtol=1e-3, atol=1e-3)
    assert found["accuracy"] >= goal


if __name__ == "__main__":
    main()
