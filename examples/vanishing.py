"""Vanishing and exploding gradients, and what the gradient report says of them.

Twenty sigmoid layers, plain and with residual connections; a bad start; layers without
an activation, which collapse to one matrix. Writes the norms as SVG. Run:
``python examples/vanishing.py [--short] [--out FOLDER]``.
"""

import argparse
from pathlib import Path

import numpy as np

import staticgrad as sg

WIDTH, LAYERS, SAMPLES = 32, 20, 64


def data():
    """Inputs, and a target that depends on two of them."""
    x = np.random.default_rng(0).normal(size=(SAMPLES, WIDTH)).astype(np.float32)
    return {"x": x, "y": np.sin(x[:, 0]) + 0.5 * x[:, 1]}


def network(residual):
    """The loss of a chain of sigmoid layers; with `residual` each adds to its input."""
    with sg.Graph(seed=0):
        x, y = sg.input("x", ("batch", WIDTH)), sg.input("y", ("batch",))
        h = x
        for number in range(LAYERS):
            with sg.scope(f"layer{number:02}"):
                new = sg.sigmoid(sg.nn.Linear(WIDTH, WIDTH)(h))
            h = h + new / LAYERS if residual else new
        with sg.scope("out"):
            result = sg.nn.Linear(WIDTH, 1)(h)[:, 0]
        return sg.mean((result - y) ** 2)


def exploding():
    """The loss of a chain of relu layers that starts far too large."""
    with sg.Graph():
        h = sg.input("x", ("batch", WIDTH))
        for number in range(LAYERS):
            start = np.full((WIDTH, WIDTH), 0.5, np.float32)
            h = sg.relu(h @ sg.parameter(start, name=f"w{number:02}"))
        return sg.mean(h)


def collapsing():
    """Three linear layers in a row, and the one matrix that they are."""
    with sg.Graph(seed=0):
        layers = [sg.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3)]
        x = sg.input("x", ("batch", WIDTH))
        y = sg.nn.Sequential(*layers)(x)
        first, second, third = (layer.weight for layer in layers)
        return sg.mean(y**2), y, third @ second @ first


def check_training(samples, epochs):
    """Interpret the norms: the plain network stays where it is, the other learns."""
    last = {}
    for residual in (False, True):
        loss = network(residual)
        trainer = sg.Trainer(loss, optimizer=sg.optim.SGD(0.05))
        watch = trainer.watch_gradients(last=epochs)
        history = trainer.fit(samples, epochs=epochs, progress=False)
        last[residual] = history["loss"]
        first = watch.names[0]
        print(f"residual {residual!s:5}: loss {history['loss'][0]:.3f} -> "
              f"{history['loss'][-1]:.3f}, norm of {first} "
              f"{watch[first]['norm'].mean():.1e} on average")  # fmt: skip
    assert last[True][-1] < 0.5 * last[False][-1]


def main():
    """Report on each network; check the thresholds and what is drawn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="fewer steps")
    parser.add_argument("--out", default="vanishing_out", type=Path, help="SVG folder")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    samples = data()

    plain = sg.gradient_report(network(residual=False), samples)
    print(f"--- plain\n{plain}\n")
    assert plain.norms["layer00"] < 1e-8
    assert any(text.startswith("vanishing") for text in plain.verdicts)

    kept = sg.gradient_report(network(residual=True), samples)
    print(f"--- with residual connections\n{kept}\n")
    assert 1e-3 < kept.norms["layer00"] < 1
    assert kept.healthy, kept.verdicts

    exploded = sg.gradient_report(exploding(), {"x": abs(samples["x"])})
    print(f"--- a bad start\n{exploded.verdicts[0]}\n")
    assert exploded.global_norm > 1e10
    assert exploded.verdicts[0].startswith("explosion")

    loss, y, matrix = collapsing()
    linear = sg.gradient_report(loss, {"x": samples["x"]})
    print("--- without activations", *linear.verdicts[1:], sep="\n")
    assert sum(text.startswith("linear") for text in linear.verdicts) == 2
    result, product = sg.compile([y, matrix])(x=samples["x"])
    np.testing.assert_allclose(result, samples["x"] @ product.T, rtol=1e-3, atol=1e-5)

    check_training(samples, 200 if options.short else 2000)
    plain.render(options.out / "plain.svg")
    kept.render(options.out / "residual.svg")
    print(f"pictures  {options.out}/plain.svg, residual.svg")


if __name__ == "__main__":
    main()
