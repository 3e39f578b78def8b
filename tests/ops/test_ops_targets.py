"""Every op at each of its samples, on every target, against NumPy.

Layouts too: inputs are plain arrays, every second element of larger ones, and reversed;
sizes are literals or symbols.
"""

import numpy as np
import pytest
from tolerances import assert_ulp

import staticgrad as sg
from staticgrad.ir.graph import apply_multi
from staticgrad.ir.op import OPS, Gather, Scatter
from staticgrad.ops.movement.checked_index import checked

TARGETS = ("reference", "cpu")


def node_of(op, sample, leaves):
    """The op's outputs on `leaves`; an index is checked first, as it has to be."""
    inputs = list(leaves)
    if isinstance(op.code, Gather | Scatter):
        extent = leaves[0].shape[sample.attrs["axis"]]
        extent -= sample.attrs.get("window", 1) - 1
        inputs[1] = checked(leaves[1], extent)
    return apply_multi(op, *inputs, **sample.attrs)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("op", [op for op in OPS.values() if op.samples()], ids=repr)
def test_ops_equal_numpys(op, target):
    # one graph for all samples of an op: compiling takes longer than running
    inputs, outputs, arrays, wanted = [], [], [], []
    for sample in op.samples():
        args = [np.asarray(arg) for arg in sample.args]
        leaves = [
            sg.input(f"x{len(inputs) + n}", a.shape, a.dtype)
            for n, a in enumerate(args)
        ]
        inputs += leaves
        arrays += args
        outputs += node_of(op, sample, leaves)
        results = op.numpy(*args, **sample.attrs)
        results = results if op.outputs != 1 else (results,)
        wanted += [(sample.ulp, result) for result in results]
    f = sg.compile(outputs, inputs=inputs, target=target)
    for got, (ulp, want) in zip(f(*arrays), wanted, strict=True):
        assert_ulp(got, want, ulp)


def spaced(array):
    """The same values, two elements apart on the last axis."""
    if array.ndim == 0:
        return array
    wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
    wide[..., ::2] = array
    return wide[..., ::2]


def backwards(array):
    """The same values, stored in reverse order."""
    turned = tuple(slice(None, None, -1) for _ in array.shape)
    return array[turned].copy()[turned] if array.ndim else array


LAYOUTS = {"spaced": spaced, "backwards": backwards, "fortran": np.asfortranarray}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("target", TARGETS)
def test_layouts_of_inputs(layout, target):
    x, y = sg.input("x", (3, 5)), sg.input("y", (5,))
    outputs = [x + y, sg.exp(x) * 2, sg.sum(x, axis=0), sg.max(x, axis=1), x.T * 1]
    f = sg.compile(outputs, inputs=[x, y], target=target)
    values = np.linspace(-2, 2, 15, dtype="float32").reshape(3, 5)
    arrange = LAYOUTS[layout]
    got = f(arrange(values), arrange(values[0]))
    want = [
        values + values[0], np.exp(values) * 2, values.sum(0), values.max(1), values.T
    ]  # fmt: skip
    for left, right in zip(got, want, strict=True):
        assert_ulp(left, right, 8)


SIZES = [(0, 0), (0, 3), (1, 1), (2, 3), (5, 17), (64, 33)]


@pytest.mark.parametrize("target", TARGETS)
def test_symbolic_sizes_of_every_kind(target):
    x, y = sg.input("x", ("n", "m")), sg.input("y", ("m",))
    outputs = [
        sg.tanh(x) + y,
        sg.sum(x * y, axis=1),
        sg.sum(x, axis=0),
        sg.prod(x, axis=()),
        sg.logsumexp(sg.concatenate([x, sg.zeros((1, y.shape[0]))]), axis=0),
        sg.where(x > y, x, y),
        sg.sum(x) * 2,
        x / (x.shape[0] * x.shape[1] + 1),
    ]
    f = sg.compile(outputs, inputs=[x, y], target=target)
    for n, m in SIZES:
        a = np.linspace(-2, 3, n * m, dtype="float32").reshape(n, m)
        b = np.linspace(-1, 1, m, dtype="float32")
        rows = np.concatenate([a, np.zeros((1, m), "float32")])
        want = [
            np.tanh(a) + b,
            (a * b).sum(1),
            a.sum(0),
            a,
            np.log(np.exp(rows).sum(0)) if m else np.zeros(0, "float32"),
            np.maximum(a, b),
            a.sum() * 2,
            a / np.float32(n * m + 1),
        ]
        for left, right in zip(f(a, b), want, strict=True):
            np.testing.assert_allclose(left, right, rtol=2e-5, atol=2e-5)


CHAINS = {
    "softmax": lambda x: sg.softmax(x, axis=-1),
    "log_softmax": lambda x: sg.log_softmax(x, axis=0),
    "softplus": sg.softplus,
    "relu": sg.relu,
    "clip": lambda x: sg.clip(x, -1, 1),
    "var": lambda x: sg.var(x, axis=1, ddof=1),
    "std": sg.std,
    "argmax": lambda x: sg.argmax(x, axis=1),
    "argmin": lambda x: sg.argmin(x, keepdims=True),
    "logsumexp": lambda x: sg.logsumexp(x, axis=(0, 1)),
    "logaddexp": lambda x: sg.logaddexp(x, x[0]),
    "nan_to_num": sg.nan_to_num,
    "power": lambda x: abs(x) ** 1.7 + x**3,
    "isclose": lambda x: sg.isclose(x, x + 1e-7),
    "round": lambda x: sg.round(x, 1),
    "mean": lambda x: sg.mean(x, axis=0, keepdims=True),
    "average": lambda x: sg.average(x, axis=0, weights=x * x + 1),
    "heaviside": lambda x: sg.heaviside(x, 0.5),
    "integers": lambda x: sg.sum(x.astype("int8"), axis=0) // 3 % 2,
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CHAINS)
def test_composites_on_the_cpu_equal_the_reference(name, dtype):
    x = sg.input("x", ("n", 7), dtype)
    y = CHAINS[name](x)
    compiled = [sg.compile(y, inputs=[x], target=t) for t in TARGETS]
    for rows in (1, 2, 40):
        value = np.random.default_rng(rows).normal(0, 3, (rows, 7)).astype(dtype)
        value[0, :2] = 0
        want, got = (f(value) for f in compiled)
        rtol = 1e-5 if dtype == "float32" else 1e-13
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol, equal_nan=True)
