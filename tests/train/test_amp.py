"""Policies of mixed precision, and loss scales in loops of one's own."""

from typing import get_args

import numpy as np
import pytest

import staticgrad as sg
from staticgrad.ir.op import OPS, Amp

HOW = get_args(Amp)
TARGETS = ("reference", "cpu")
both = pytest.mark.parametrize("target", TARGETS)
halves = pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
RNG = np.random.default_rng(0)


def test_operations_are_divided_as_by_pytorch():
    named = {how: {op.name for op in OPS.values() if op.amp == how} for how in HOW}
    assert named["half"] == {"matmul", "conv", "conv_input"}
    assert named["float32"] == set(
        "exp exp2 expm1 log log1p log2 log10 power sinh cosh tan asin acos softplus "
        "rsqrt reduce_sum reduce_prod cumsum cumprod lgamma digamma zeta xlogy erfinv"
        "".split()
    )
    assert sum(map(len, named.values())) == len(OPS)


@halves
def test_products_are_narrow_and_what_overflows_is_wide(dtype):
    with sg.Graph(amp=sg.amp.Policy(dtype)):
        x, w = sg.input("x", (4, 4)), sg.parameter(np.ones((4, 4), "f4"), name="w")
        y = x @ w
        narrow = [
            y, sg.einsum("ij,jk->ik", x, w), y.T, sg.relu(y), y * 2, y[0], y + y,
            sg.concatenate([y, y]), sg.max(y, axis=0), sg.tanh(y), sg.sigmoid(y),
        ]  # fmt: skip
        wide = [
            sg.exp(y), sg.sum(y), sg.mean(y), sg.softmax(y), sg.log(y), y**2.5,
            sg.std(y), sg.logsumexp(y), sg.nn.layer_norm(y), x + y, sg.cumsum(y),
            sg.nn.mse_loss(y, y), sg.linalg.norm(y),
        ]  # fmt: skip
        same = [sg.argmax(y), y > 0]
    assert {str(t.dtype) for t in narrow} == {dtype}
    assert {str(t.dtype) for t in wide} == {"float32"}
    assert [str(t.dtype) for t in same] == ["int64", "bool"]
    assert (x @ w).dtype == np.float32  # outside of it


def test_float64_stays():
    with sg.amp.Policy("float16"):
        x = sg.constant(np.ones((2, 2)))
        assert (x @ x).dtype == np.float64


@halves
def test_policies_nest_and_belong_to_modules(dtype):
    with sg.Graph(seed=0, amp=sg.amp.Policy(dtype)):
        x = sg.input("x", ("batch", 4))
        head = sg.amp.set_policy(sg.nn.Linear(4, 3), "float32")
        body = sg.nn.Linear(4, 4)
        y = body(x)
        assert (str(y.dtype), str(head(y).dtype)) == (dtype, "float32")
        with sg.amp.Policy("float32"), sg.amp.Policy("bfloat16"):
            assert str(body(x).dtype) == "bfloat16"
        assert str(body(x).dtype) == dtype
        sg.amp.set_policy(head, None)
        assert str(head(y).dtype) == dtype


def test_a_module_brings_its_policy():
    with sg.Graph(seed=0):
        x = sg.input("x", ("batch", 4))
        model = sg.nn.Sequential(sg.nn.Linear(4, 4), sg.nn.Linear(4, 2))
        sg.amp.set_policy(model[0], sg.amp.Policy("float16"))
        assert str(model[0](x).dtype) == "float16"
        assert str(model(x).dtype) == "float32"


@halves
@both
def test_layers_under_a_policy_have_float32_gradients(dtype, target):
    with sg.Graph(seed=0, amp=sg.amp.Policy(dtype)):
        x = sg.input("x", ("batch", 2, 6, 6))
        y = sg.input("y", ("batch",), "int64")
        model = sg.nn.Sequential(
            sg.nn.Conv2d(2, 4, 3, padding=1), sg.nn.BatchNorm2d(4), sg.nn.ReLU(),
            sg.nn.MaxPool2d(2), sg.nn.Flatten(), sg.nn.Linear(36, 8),
            sg.nn.LayerNorm(8), sg.nn.GELU(), sg.nn.Linear(8, 3),
        )  # fmt: skip
        assert str(model[0](x).dtype) == dtype
        loss = sg.nn.cross_entropy(model(x), y)
        dw = sg.grad(loss, model.parameters())
    assert loss.dtype == np.float32
    assert {str(g.dtype) for g in dw.values()} == {"float32"}
    data = RNG.normal(size=(5, 2, 6, 6)), np.arange(5) % 3
    found = sg.compile([loss, dw], mode="train", target=target)(*data)
    with sg.Graph(seed=0):
        x, y = sg.input("x", ("batch", 2, 6, 6)), sg.input("y", ("batch",), "int64")
        exact = sg.nn.cross_entropy(model(x), y)
        wanted = sg.grad(exact, model.parameters())
    want = sg.compile([exact, wanted], mode="train")(*data)
    digits = 2e-3 if dtype == "float16" else 2e-2
    assert found[0] == pytest.approx(float(want[0]), rel=digits)
    for name, g in want[1].items():
        scale = max(np.abs(g).max(), 5e-2)  # a bias before a norm has 0
        assert np.abs(found[1][name] - g).max() < 20 * digits * scale, name


@halves
def test_activations_are_stored_in_16_bits(dtype):
    def arena(policy):
        with sg.Graph(seed=0, amp=policy):
            h = x = sg.input("x", (512, 64))
            model = [sg.nn.Linear(64, 64) for _ in range(24)]
            for layer in model:
                h = sg.tanh(layer(h))
            loss = sg.mean(h * h)
            grads = sg.grad(loss, [p for m in model for p in m.parameters().values()])
        f = sg.compile([loss, grads], inputs=[x], sizes={})
        return f.memory.arena_bytes

    assert arena(sg.amp.Policy(dtype)) < 0.75 * arena(None)


@both
def test_a_scale_saves_gradients_that_float16_loses(target):
    found = []
    for scale in (None, "dynamic"):
        with sg.Graph(seed=0, amp=sg.amp.Policy("float16")):
            x = sg.input("x", ("batch", 2))
            w = sg.parameter(np.float32([[1.0], [1.0]]), name="w")
            loss = sg.mean(x @ w) * 1e-8  # the cotangent of the product is 1e-8
        trainer = sg.Trainer(loss, sg.optim.SGD(1e6), target=target, loss_scale=scale)
        trainer.step(x=np.ones((4, 2)))
        found.append(1 - float(w.value[0, 0]))
    assert found[0] == 0
    assert found[1] == pytest.approx(0.01, rel=1e-3)


@both
@halves
def test_training_with_master_weights(dtype, target):
    x = RNG.normal(size=(64, 4)).astype("f4")
    y = np.tanh(x @ RNG.normal(size=(4, 1))).astype("f4")
    with sg.Graph(seed=0, amp=sg.amp.Policy(dtype)):
        a, b = sg.input("x", ("batch", 4)), sg.input("y", ("batch", 1))
        model = sg.nn.Sequential(sg.nn.Linear(4, 16), sg.nn.Tanh(), sg.nn.Linear(16, 1))
        loss = sg.nn.mse_loss(model(a), b)
    trainer = sg.Trainer(loss, sg.optim.Adam(0.02), loss_scale="dynamic", target=target)
    history = trainer.fit({"x": x, "y": y}, epochs=40, batch_size=16, progress=False)
    assert history["loss"][-1] < 0.05 * history["loss"][0]
    assert history["loss_scale"][0] <= 65536
    for p in model.parameters().values():
        assert p.value.dtype == np.float32
        # masters have digits that 16 bits do not have
        assert (p.value.astype(dtype).astype("f4") != p.value).any()


@both
def test_a_loop_of_ones_own(target):
    w = sg.parameter(np.float32(1.0), name="w")
    x = sg.input("x", ())
    scale = sg.amp.LossScale(init=8.0, interval=2)
    scaled = sg.grad(w * x, w, cotangent=scale.value)
    (dw,), finite = scale.unscale([scaled])
    pairs = sg.optim.SGD(0.5).updates(dw, w)
    pairs = [*sg.amp.where_finite(finite, pairs), *scale.updates(finite)]
    step = sg.compile(finite, updates=pairs, mode="train", target=target)
    scales = []
    for value in (1.0, 1.0, np.inf, 1.0):
        scales.append(float(scale.value.value))
        assert bool(step(value)) == np.isfinite(value)
    assert scales == [8, 8, 16, 8]
    assert w.value == 1 - 3 * 0.5


def test_the_scale_does_not_grow_beyond_float32():
    scale = sg.amp.LossScale(init=2.0**127, interval=1)
    step = sg.compile(
        scale.value, updates=scale.updates(sg.constant(np.True_)), mode="train"
    )
    step()
    assert scale.value.value == 2.0**127


REFUSED = [
    (lambda: sg.amp.Policy("float64"), "float16, bfloat16 or float32, got float64"),
    (lambda: sg.amp.LossScale(init=0), "init > 0"),
    (lambda: sg.amp.LossScale(growth=0.5), "growth >= 1"),
    (lambda: sg.amp.LossScale(backoff=2), "0 < backoff <= 1"),
    (lambda: sg.amp.LossScale(interval=0), "interval >= 1"),
]


@pytest.mark.parametrize(("call", "match"), REFUSED)
def test_messages(call, match):
    with pytest.raises(sg.GraphError, match=match):
        call()
