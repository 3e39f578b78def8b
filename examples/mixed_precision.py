"""Mixed precision: 16-bit products, float32 parameters, a dynamic loss scale.

Trains one network on two spirals in float32, float16 and bfloat16, compares losses and
memory, and shows the scale at work: a gradient that float16 loses, and an overflow that
costs one step and nothing else. Run: ``python examples/mixed_precision.py [--short]``.
"""

import argparse

import numpy as np

import staticgrad as sg

TURNS = 1.5


def spirals(samples):
    """Points (samples, 2) on two arms, and which arm (samples,)."""
    generator = np.random.default_rng(0)
    arm = np.arange(samples) % 2
    along = generator.uniform(0.2, 1, samples)
    angle = 2 * np.pi * TURNS * along + np.pi * arm
    points = along[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    points += 0.02 * generator.standard_normal(points.shape)
    return points.astype(np.float32), arm


def build(policy):
    """Parameters, loss, accuracy of a network of four layers under a policy."""
    with sg.Graph(seed=0, amp=policy):
        x = sg.input("x", ("batch", 2))
        y = sg.input("y", ("batch",), dtype="int64")
        model = sg.nn.Sequential(
            sg.nn.Linear(2, 64), sg.nn.Tanh(), sg.nn.Linear(64, 64), sg.nn.Tanh(),
            sg.nn.Linear(64, 64), sg.nn.Tanh(), sg.nn.Linear(64, 2),
        )  # fmt: skip
        logits = model(x)
        loss = sg.nn.cross_entropy(logits, y)
        accuracy = sg.metrics.accuracy(logits, y)
    return model.parameters(), loss, accuracy


def trainer_of(name, epochs):
    """A trainer in the precision `name`, for so many epochs, and its parameters."""
    policy = None if name == "float32" else sg.amp.Policy(name)
    parameters, loss, accuracy = build(policy)
    trainer = sg.Trainer(
        loss,
        sg.optim.Adam(sg.optim.cosine(0.01, steps=8 * epochs, warmup=20)),
        metrics={"accuracy": accuracy},
        clip=sg.optim.clip_by_global_norm(1.0),
        loss_scale=None if policy is None else "dynamic",
    )
    return trainer, parameters


def train(name, epochs):
    """The history of training in the precision `name`."""
    trainer, parameters = trainer_of(name, epochs)
    x, y = spirals(1024)
    history = trainer.fit(
        {"x": x, "y": y}, epochs=epochs, batch_size=128, progress=False
    )
    assert all(p.value.dtype == np.float32 for p in parameters.values())
    return history


def arena_bytes(name, layers=24):
    """Measure the memory of a deep network's gradient for 1,024 samples."""
    with sg.Graph(seed=0, amp=sg.amp.Policy(name)):
        h = x = sg.input("x", (1024, 64))
        parameters = []
        for _ in range(layers):
            layer = sg.nn.Linear(64, 64)
            parameters += layer.parameters().values()
            h = sg.tanh(layer(h))
        grads = sg.grad(sg.mean(h * h), parameters)
    return sg.compile(grads, inputs=[x], sizes={}).memory.arena_bytes


def lost_gradient(scale):
    """Measure the change by a step where the gradient of a product is 1e-8."""
    with sg.Graph(amp=sg.amp.Policy("float16")):
        x = sg.input("x", ("batch", 1))
        w = sg.parameter(np.ones((1, 1), np.float32), name="w")
        loss = sg.mean(x @ w) * 1e-8
    trainer = sg.Trainer(loss, sg.optim.SGD(1e7), loss_scale=scale)
    trainer.step(x=np.ones((4, 1)))
    return 1 - float(w.value[0, 0])


def overflow():
    """The scale and what is skipped in four steps, the second of which overflows."""
    x = sg.input("x", ("batch",))
    w = sg.parameter(np.float32(0), name="w")
    trainer = sg.Trainer(w * sg.mean(x), sg.optim.Adam(0.1), loss_scale="dynamic")
    history = trainer.fit(
        {"x": np.float32([1, 3e38, 1, 1])}, batch_size=1, shuffle=False,
        record="step", progress=False,
    )  # fmt: skip
    assert trainer.optimizer.states["step"].value == 3
    return history["loss_scale"], history["skipped"]


def main():
    """Train in three precisions, then look at the scale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="a tenth of the epochs")
    short = parser.parse_args().short
    results = {}
    for name in ("float32", "float16", "bfloat16"):
        history = results[name] = train(name, 15 if short else 150)
        print(
            f"{name:9} loss {history['loss'][0]:.3f} -> {history['loss'][-1]:.4f}, "
            f"accuracy {history['accuracy'][-1]:.3f}, "
            f"clipped {history['clipped'].mean():.0%} of the steps"
        )
        assert abs(history["loss"][0] - results["float32"]["loss"][0]) < 0.01
        assert short or history["accuracy"][-1] > 0.99
    single, half = (arena_bytes(name) for name in ("float32", "float16"))
    print(f"arena of 24 layers: {single:,} bytes in float32, {half:,} in float16")
    assert half < 0.75 * single
    plain, scaled = lost_gradient(None), lost_gradient("dynamic")
    print(f"gradient 1e-8 in float16: step {plain} without a scale, {scaled:.3f} with")
    assert plain == 0
    assert abs(scaled - 0.1) < 1e-3
    scales, skipped = overflow()
    print(f"an overflow: scale {scales.tolist()}, skipped {skipped.tolist()}")
    assert scales.tolist() == [65536, 65536, 32768, 32768]
    assert skipped.tolist() == [0, 1, 0, 0]


if __name__ == "__main__":
    main()
