"""Gradients of a picture: what a trained network looks at, and what fools it.

The convolutional network of ``digits_cnn.py``, trained; then saliency (the gradient of
a score with respect to the pixels), Grad-CAM (Selvaraju et al., 2017: where the
features of a convolution speak for a digit), adversarial digits by the fast gradient
sign method (Goodfellow et al., 2015), and the Jacobian of a feature inside of the
network with respect to the picture. Writes all of them as one picture. Run:
``python examples/digits_explained.py [--short] [--out FOLDER]``.
"""

import argparse
from pathlib import Path

import digits_cnn
import numpy as np

import staticgrad as sg

FEATURES = 4  # the relu after the second convolution: the last one before a pool
STRENGTH = 0.15  # of an attack, on pixels between 0 and 1
PATCH = 12  # pixels that are painted over, of 64


def explained(model):
    """Inputs, and what is asked of the network about them, by name.

    The gradients are those of one score of each picture. As no picture has a part in
    the score of another, the gradient of their sum holds one picture's in each row.
    """
    features = []
    with sg.Graph():
        x = sg.input("x", ("batch", 1, 8, 8))
        y = sg.input("y", ("batch",), dtype="int64")
        handle = model[FEATURES].on_forward(
            lambda layer, args, result: features.append(result)
        )
        logits = model(x)
        handle.remove()
        score = sg.sum(logits * sg.one_hot(y, 10))
        slope, votes = sg.grad(score, [x, features[0]])
        # the mean vote of a channel weighs its features; only what speaks for y counts
        weight = sg.mean(votes, axis=(2, 3), keepdims=True)
        loss = sg.nn.cross_entropy(logits, y)
        push = STRENGTH * sg.sign(sg.grad(loss, x))
    return {
        "saliency": abs(slope)[:, 0],
        "grad_cam": sg.relu(sg.sum(weight * features[0], axis=1)),
        "adversarial": sg.clip(x + push, 0.0, 1.0),
    }


def feature_jacobian(model):
    """d features / d picture, (32, 8, 8, 8, 8)."""
    with sg.Graph():
        x = sg.input("picture", (1, 1, 8, 8))
        features = x
        for layer in list(model)[: FEATURES + 1]:
            features = layer(features)
    return sg.reshape(sg.jacobian(features, x), (32, 8, 8, 8, 8))


def painted_over(images, order):
    """The images without the PATCH pixels that come first in `order`."""
    changed = images.reshape(len(images), -1).copy()
    np.put_along_axis(changed, order[:, :PATCH], 0.5, axis=1)
    return changed.reshape(images.shape)


def check_map(name, predict, held_out, heat):
    """Grey over the pixels that a map names first hurts more than over the last."""
    order = np.argsort(-heat.reshape(len(heat), -1), axis=1, kind="stable")
    most, least = (
        digits_cnn.score(predict, painted_over(held_out["x"], o), held_out["y"])
        for o in (order, order[:, ::-1])
    )
    print(f"{name:11} {most:.1%} of digits found without the {PATCH} pixels that count "
          f"most, {least:.1%} without those that count least")  # fmt: skip
    assert most < least - 0.1


def check_attack(predict, held_out, adversarial):
    """A small step along the sign of the gradient fools; a random one does not."""
    x, y = held_out["x"], held_out["y"]
    signs = np.random.default_rng(0).choice([-1.0, 1.0], x.shape)
    noisy = np.clip(x + STRENGTH * signs, 0, 1).astype(np.float32)
    clean, fooled, noise = (
        digits_cnn.score(predict, images, y) for images in (x, adversarial, noisy)
    )
    print(f"attack      {clean:.1%} found, {fooled:.1%} after steps of {STRENGTH}, "
          f"{noise:.1%} after random ones")  # fmt: skip
    assert fooled < 0.6 * clean
    assert noise > fooled + 0.4


def check_jacobian(model, picture):
    """A feature in the corner sees the 3 x 3 pixels of its corner, and no others."""
    found = sg.compile(feature_jacobian(model))(picture[None])
    corner = abs(found[:, 0, 0]).sum(axis=0)
    seen = corner > 1e-5 * corner.max()  # rounding of transformed tiles reaches farther
    print(f"Jacobian    {found.shape}; the corner's features see {seen.sum()} pixels")
    assert seen[:3, :3].all()
    assert not seen[3:].any()
    assert not seen[:, 3:].any()


def draw(images, found, path):
    """Eight digits: as they are, saliency, Grad-CAM, adversarial."""
    from matplotlib.figure import Figure  # noqa: PLC0415  # heavy, for this only

    rows = {"digit": images, **found}
    figure = Figure(figsize=(9, 4.8), layout="constrained")
    axes = figure.subplots(len(rows), 8)
    for line, (name, pictures) in zip(axes, rows.items(), strict=True):
        colours = "magma" if name in ("saliency", "grad_cam") else "gray_r"
        pictures = pictures.reshape(8, *pictures.shape[-2:])
        for axis, picture in zip(line, pictures, strict=True):
            axis.imshow(picture, cmap=colours)
            axis.set(xticks=[], yticks=[])
        line[0].set_ylabel(name.replace("_", "-"))
    figure.savefig(path)


def main():
    """Train, look, attack, draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="a few epochs only")
    parser.add_argument("--out", default="explained_out", type=Path, help="SVG folder")
    options = parser.parse_args()
    train, held_out = digits_cnn.load()
    logits, loss, _, model = digits_cnn.build()
    trainer = sg.Trainer(loss, optimizer=sg.optim.Adam(2e-3))
    epochs = 6 if options.short else 25
    trainer.fit(train, epochs=epochs, batch_size=32, seed=1, progress=False)

    predict = sg.compile(logits)
    found = sg.compile(explained(model))(**held_out)
    check_map("saliency", predict, held_out, found["saliency"])
    check_map("Grad-CAM", predict, held_out, found["grad_cam"])
    check_attack(predict, held_out, found["adversarial"])
    check_jacobian(model, held_out["x"][0])
    options.out.mkdir(parents=True, exist_ok=True)
    few = {name: value[:8] for name, value in found.items()}
    draw(held_out["x"][:8], few, options.out / "explained.svg")
    print(f"picture     {options.out}/explained.svg")


if __name__ == "__main__":
    main()
