"""Optimisers, schedules, clipping, accumulation, layers and loss scales beside PyTorch.

Skipped where PyTorch is not installed.
"""

from itertools import islice

import numpy as np
import pytest
from torch_peers import QUIET, F, carried, cut, descended, torch

import staticgrad as sg

RNG = np.random.default_rng(0)
START = RNG.normal(size=(4, 3)).astype(np.float32)
X = RNG.normal(size=(60, 4)).astype(np.float32)
Y = RNG.normal(size=(60, 3)).astype(np.float32)
NEAR = {"rtol": 2e-4, "atol": 2e-6}

OPTIMIZERS = {
    "sgd": (lambda s: sg.optim.SGD(s), lambda p: torch.optim.SGD(p, 0.1)),
    "momentum": (
        lambda s: sg.optim.SGD(s, 0.9, weight_decay=0.01),
        lambda p: torch.optim.SGD(p, 0.1, 0.9, weight_decay=0.01),
    ),
    "nesterov": (
        lambda s: sg.optim.Momentum(s, 0.9, nesterov=True),
        lambda p: torch.optim.SGD(p, 0.1, 0.9, nesterov=True),
    ),
    "adam": (
        lambda s: sg.optim.Adam(s, weight_decay=0.01),
        lambda p: torch.optim.Adam(p, 0.1, weight_decay=0.01),
    ),
    "adamw": (lambda s: sg.optim.AdamW(s), lambda p: torch.optim.AdamW(p, 0.1)),
    "rmsprop": (
        lambda s: sg.optim.RMSprop(s, momentum=0.5, weight_decay=0.01),
        lambda p: torch.optim.RMSprop(p, 0.1, momentum=0.5, weight_decay=0.01),
    ),
    "centered": (
        lambda s: sg.optim.RMSprop(s, centered=True),
        lambda p: torch.optim.RMSprop(p, 0.1, centered=True),
    ),
}


def ours(optimizer, **options):
    with sg.Graph():
        x, y = sg.input("x", ("batch", 4)), sg.input("y", ("batch", 3))
        w = sg.parameter(START, name="w")
        loss = sg.nn.mse_loss(sg.tanh(x @ w), y)
    return sg.Trainer(loss, optimizer, **options), w


def theirs(make, steps, schedule=None, clip=None, groups=1):
    w = torch.tensor(START, requires_grad=True)
    optimizer = make([w])
    after = schedule(optimizer).step if schedule else lambda: None
    batches = islice(cut({"x": X, "y": Y}, 10, 99), steps * groups)
    descended(
        optimizer, lambda x, y: F.mse_loss(torch.tanh(x @ w), y), batches, after,
        clip, groups,
    )  # fmt: skip
    return w.detach().numpy()


def fitted(trainer, steps):
    trainer.fit({"x": X, "y": Y}, steps=steps, epochs=99, batch_size=10, **QUIET)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimisers(name):
    mine, make = OPTIMIZERS[name]
    trainer, w = ours(mine(0.1))
    fitted(trainer, 12)
    np.testing.assert_allclose(w.value, theirs(make, 12), **NEAR)


SCHEDULES = {
    "cosine": (
        sg.optim.cosine(0.1, 8, final=0.01),
        lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 8, eta_min=0.01),
    ),
    "steps": (
        sg.optim.step_decay(0.1, 3, 0.5),
        lambda o: torch.optim.lr_scheduler.StepLR(o, 3, 0.5),
    ),
    "exponential": (
        sg.optim.exponential(0.1, 0.8),
        lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.8),
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules(name):
    mine, schedule = SCHEDULES[name]
    trainer, w = ours(sg.optim.Momentum(mine, 0.9))
    fitted(trainer, 8)
    want = theirs(lambda p: torch.optim.SGD(p, 0.1, 0.9), 8, schedule=schedule)
    np.testing.assert_allclose(w.value, want, **NEAR)


def test_clipping():
    trainer, w = ours(sg.optim.SGD(0.5), clip=sg.optim.clip_by_global_norm(0.1))
    fitted(trainer, 9)
    want = theirs(lambda p: torch.optim.SGD(p, 0.5), 9, clip=0.1)
    np.testing.assert_allclose(w.value, want, **NEAR)


def test_accumulation():
    trainer, w = ours(sg.optim.Adam(0.1), accumulate=3)
    fitted(trainer, 18)
    want = theirs(lambda p: torch.optim.Adam(p, 0.1), 6, groups=3)
    np.testing.assert_allclose(w.value, want, **NEAR)


def test_loss_scale():
    # on a CPU PyTorch's GradScaler is disabled without its own device argument
    scaler = torch.amp.GradScaler("cpu", growth_interval=3)
    w = torch.tensor(1.0, requires_grad=True)
    optimizer = torch.optim.SGD([w], 1e-6)
    values = [1.0, 1.0, 3e38, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 3e38, 1.0]
    scales = []
    for value in values:
        scales.append(scaler.get_scale())
        optimizer.zero_grad()
        scaler.scale(w * 0.1 * value).backward()
        scaler.step(optimizer)
        scaler.update()
    x, v = sg.input("x", ("batch",)), sg.parameter(np.float32(1.0), name="v")
    trainer = sg.Trainer(
        v * 0.1 * sg.mean(x), sg.optim.SGD(1e-6),
        loss_scale=sg.amp.LossScale(interval=3),
    )  # fmt: skip
    history = trainer.fit(
        {"x": np.float32(values)}, batch_size=1, shuffle=False, record="step",
        progress=False,
    )  # fmt: skip
    np.testing.assert_array_equal(history["loss_scale"], scales)
    np.testing.assert_allclose(v.value, w.detach().numpy(), rtol=1e-6)


# ---- layers --------------------------------------------------------------------------


SEQUENCE = RNG.normal(size=(3, 5, 8)).astype(np.float32)
IMAGES = RNG.normal(size=(4, 6, 5, 3)).astype(np.float32)
LAYERS = {
    "layer_norm": (sg.nn.LayerNorm, (8,), torch.nn.LayerNorm, SEQUENCE),
    "group_norm": (sg.nn.GroupNorm, (3, 6), torch.nn.GroupNorm, IMAGES),
    "batch_norm": (sg.nn.BatchNorm2d, (6,), torch.nn.BatchNorm2d, IMAGES),
    "elu": (sg.nn.ELU, (0.7,), torch.nn.ELU, SEQUENCE),
    "leaky_relu": (sg.nn.LeakyReLU, (0.3,), torch.nn.LeakyReLU, SEQUENCE),
    "silu": (sg.nn.SiLU, (), torch.nn.SiLU, SEQUENCE),
    "gelu": (sg.nn.GELU, (), torch.nn.GELU, SEQUENCE),
    "softplus": (sg.nn.Softplus, (), torch.nn.Softplus, SEQUENCE),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_and_their_gradients(name):
    kind, sizes, other, data = LAYERS[name]
    with sg.Graph(seed=0) as graph:
        x = sg.input("x", ("batch", *data.shape[1:]))
        mine = kind(*sizes)
        y = mine(x)
        wrt = [x, *mine.parameters().values()]
        grads = sg.grad(sg.sum(y**3), wrt)
    peer = carried(mine, other(*sizes))
    z = torch.tensor(data, requires_grad=True)
    out = peer(z)
    (out**3).sum().backward()
    want = [out, z.grad, *(p.grad for p in peer.parameters())]
    f = sg.compile([y, *grads], updates=graph, mode="train")
    for left, right in zip(f(data), want, strict=True):
        np.testing.assert_allclose(left, right.detach(), rtol=2e-4, atol=2e-3)
    if hasattr(peer, "running_mean"):
        np.testing.assert_allclose(
            mine.running_mean.value, peer.running_mean, rtol=1e-4, atol=1e-6
        )
        np.testing.assert_allclose(mine.running_var.value, peer.running_var, rtol=1e-4)
        peer.eval()
        scored = sg.compile(y)(data)
        want = peer(torch.tensor(data)).detach()
        np.testing.assert_allclose(scored, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_multi_head_attention(causal):
    with sg.Graph(seed=0):
        x = sg.input("x", ("batch", 5, 8))
        mine = sg.nn.MultiHeadAttention(8, 2)
        y = mine(x, causal=causal)
        grads = sg.grad(sg.sum(y * y), [x, *mine.parameters().values()])
    peer = carried(mine, torch.nn.MultiheadAttention(8, 2, batch_first=True))
    z = torch.tensor(SEQUENCE, requires_grad=True)
    hidden = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1) if causal else None
    out, _ = peer(z, z, z, attn_mask=hidden)
    (out * out).sum().backward()
    names = dict(peer.named_parameters())
    want = [out, z.grad, *(names[n].grad for n in mine.parameters())]
    for left, right in zip(sg.compile([y, *grads])(SEQUENCE), want, strict=True):
        np.testing.assert_allclose(left, right.detach(), rtol=1e-3, atol=1e-4)


def test_embedding_and_its_gradient():
    index = np.array([[1, 2], [2, 0]])
    with sg.Graph(seed=0):
        i = sg.input("i", ("batch", 2), "int64")
        mine = sg.nn.Embedding(4, 3)
        y = mine(i)
        g = sg.grad(sg.sum(y * y), mine.weight)
    peer = carried(mine, torch.nn.Embedding(4, 3))
    out = peer(torch.tensor(index))
    (out * out).sum().backward()
    rows, grad = sg.compile([y, g])(index)
    np.testing.assert_allclose(rows, out.detach(), rtol=1e-6)
    np.testing.assert_allclose(grad, peer.weight.grad, rtol=1e-6)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_autocast_divides_operations_alike(name):
    kind = getattr(torch, name)
    z = torch.tensor(X[:8, :4])
    w = torch.nn.Parameter(torch.tensor(START))
    with torch.autocast("cpu", dtype=kind):
        out = torch.tanh(z @ w)
        loss = torch.nn.functional.mse_loss(out, torch.tensor(Y[:8]))
    loss.backward()
    with sg.Graph(amp=sg.amp.Policy(name)):
        x, y = sg.input("x", ("batch", 4)), sg.input("y", ("batch", 3))
        v = sg.parameter(START, name="w")
        result = sg.tanh(x @ v)
        error = sg.nn.mse_loss(result, y)
    assert str(result.dtype) == name
    assert out.dtype == kind
    assert (error.dtype, loss.dtype) == (np.float32, torch.float32)
    got, grad = sg.compile([error, sg.grad(error, v)])(X[:8], Y[:8])
    digits = 2e-3 if name == "float16" else 2e-2
    assert got == pytest.approx(loss.item(), rel=digits)
    np.testing.assert_allclose(grad, w.grad, rtol=0.1, atol=digits)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_conversions_have_the_same_bits(name):
    kind = getattr(torch, name)
    values = (RNG.normal(size=5000) * 10.0 ** RNG.integers(-9, 5, 5000)).astype("f4")
    x = sg.input("x", ("n",))
    got = sg.compile(x.astype(name))(values).view(np.int16)
    want = torch.tensor(values).to(kind).view(torch.int16).numpy()
    np.testing.assert_array_equal(got, want)
