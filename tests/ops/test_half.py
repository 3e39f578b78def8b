"""float16 and bfloat16: 16 bits in memory, computed with in float32.

Every op is tried at the samples of its record, its floats as 16-bit ones.
"""

import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from test_kernels import is_x86
from test_ops_targets import node_of
from tolerances import BF16, F16, HALF, assert_near, assert_ulp

import staticgrad as sg
from staticgrad.compiler.runtime.targets import reference
from staticgrad.ir.compute import compute
from staticgrad.ir.graph import Graph
from staticgrad.ir.op import OPS, Leaf, Random, Sample
from staticgrad.ir.types import TensorType, promote

TARGETS = ("reference", "cpu")
both = pytest.mark.parametrize("target", TARGETS)
halves = pytest.mark.parametrize("dtype", HALF, ids=str)


# Conversions


def interesting(dtype):
    """Numbers of all sizes, ties of both formats and their neighbours."""
    random = np.random.default_rng(0)
    some = random.normal(size=4000) * 10.0 ** random.integers(-12, 6, 4000)
    ties = [1 + k * 2.0**-n for n in (8, 9, 11, 12) for k in (1, 3, 5)]
    ties += [2.0**-24, 2.0**-25, 3 * 2.0**-25, 2.0**-14, 2.0**-126, 2.0**-134]
    ties += [65504, 65519.99, 65520, 65536, 3.3895e38, 3.4e38, 1e30]
    near = [t * (1 + s * 2.0**-22) for t in ties for s in (-1, 0, 1)]
    every = [*some, *near, 0.0, np.inf, np.nan]
    return np.concatenate([every, np.negative(every)]).astype(dtype)


def once_rounded(x, dtype):
    """`x` as `dtype`, rounded to nearest even once (ml_dtypes rounds a float64 twice).

    float64 goes through float32 rounded to odd.
    """
    if x.dtype != np.float64 or dtype == F16:
        return x.astype(dtype)
    near = x.astype(np.float32)
    with np.errstate(invalid="ignore"):
        toward = np.where(np.abs(near) > np.abs(x), np.nextafter(near, 0), near)
    bits = toward.astype(np.float32).view(np.uint32)
    odd = bits | (np.isfinite(x) & (toward != x)).astype(np.uint32)
    return odd.view(np.float32).astype(dtype)


@halves
@pytest.mark.parametrize("source", ["float32", "float64"])
def test_floats_are_rounded_once_to_nearest_even(dtype, source):
    x = sg.input("x", ("n",), source)
    values = interesting(source)
    got = sg.compile(x.astype(dtype))(values)
    with np.errstate(over="ignore"):
        want = once_rounded(values, dtype)
    bits = np.where(np.isnan(want.astype(float)), 0, want.view(np.uint16))
    assert np.array_equal(np.isnan(got.astype(float)), np.isnan(want.astype(float)))
    assert np.array_equal(np.where(bits == 0, 0, got.view(np.uint16)), bits)


@halves
def test_all_numbers_of_16_bits_survive_float32(dtype):
    x = sg.input("x", (2**16,), dtype)
    every = np.arange(2**16, dtype=np.uint16).view(dtype)
    wide, same = sg.compile([x.astype("float32"), x.astype("float32").astype(dtype)])(
        every
    )
    np.testing.assert_array_equal(wide, every.astype(np.float32))
    number = ~np.isnan(wide)
    assert np.array_equal(same.view("u2")[number], every.view("u2")[number])
    assert np.isnan(same[~number].astype(np.float32)).all()


@halves
@both
@pytest.mark.parametrize("other", ["bool", "int8", "uint8", "int32", "int64", "uint64"])
def test_integers_convert_both_ways(dtype, other, target):
    whole = sg.input("whole", (5,), other)
    real = sg.input("real", (3,), dtype)
    f = sg.compile([whole.astype(dtype), real.astype(other)], target=target)
    n, r = (
        np.array([0, 1, 3, 100, 113]).astype(other),
        np.array([0, 1.5, 7]).astype(dtype),
    )
    got = f(n, r)
    np.testing.assert_array_equal(got[0], n.astype(dtype))
    np.testing.assert_array_equal(got[1], r.astype(np.float32).astype(other))


def test_a_cast_rounds_inside_a_kernel_too():
    x = sg.input("x", ("n",))
    f = sg.compile(x.astype("float16").astype("float32") - x)
    assert f(np.float32([0.1]))[0] == np.float32(np.float16(0.1)) - np.float32(0.1)


# Types


def test_promotion_is_numpys():
    names = "bool int8 uint8 int16 uint16 int32 int64 uint64 float32 float64".split()
    for name in names:
        other = np.dtype(name)
        found = promote([TensorType((), F16), TensorType((), other)])
        assert found == (np.promote_types(F16, other), False)
        like = promote([TensorType((), other), TensorType((), BF16)])[0]
        assert like == (BF16 if found[0] == F16 else found[0])
    assert promote([TensorType((), F16), TensorType((), BF16)])[0] == np.float32


@halves
def test_python_numbers_keep_16_bits(dtype):
    x = sg.input("x", (2,), dtype)
    for y in (x * 2.5, 1 + x, x / 3, x > 1, sg.exp(x), -x, x**2, x**0.5, sg.relu(x)):
        assert y.dtype in (dtype, np.bool_)
    assert (x * sg.constant(2.0)).dtype == dtype
    assert (x * np.float32(2.0)).dtype == np.float32
    assert (x * np.float64(2.0)).dtype == np.float64
    assert sg.constant(np.ones(2, dtype)).dtype == dtype
    assert sg.zeros((2,), dtype).dtype == sg.ones_like(x).dtype == dtype
    with sg.Graph(dtype=dtype):
        assert sg.input("y", ()).dtype == sg.zeros(2).dtype == dtype


# Operations


def halved(sample, dtype):
    """The sample with its floats in 16 bits; None if it has none."""
    args = [np.asarray(arg) for arg in sample.args]
    attrs = dict(sample.attrs)
    if any(isinstance(v, np.dtype) and v.kind == "f" for v in attrs.values()):
        attrs = {k: dtype if isinstance(v, np.dtype) else v for k, v in attrs.items()}
    elif not any(arg.dtype.kind == "f" for arg in args):
        return None
    with np.errstate(over="ignore"):
        args = [arg.astype(dtype) if arg.dtype.kind == "f" else arg for arg in args]
    return Sample(tuple(args), attrs)


COMPUTED = [
    op
    for op in OPS.values()
    if not isinstance(op.code, Leaf | Random)
    and any(halved(sample, F16) for sample in op.samples())
]


@halves
@both
@pytest.mark.parametrize("op", COMPUTED, ids=repr)
def test_ops_are_the_rounded_results_of_float32(op, target, dtype):
    inputs, outputs, arrays, wanted = [], [], [], []
    for sample in filter(None, (halved(s, dtype) for s in op.samples())):
        leaves = [
            sg.input(f"x{len(inputs) + n}", a.shape, a.dtype)
            for n, a in enumerate(sample.args)
        ]
        made = node_of(op, sample, leaves)
        inputs += leaves
        arrays += sample.args
        outputs += made
        with np.errstate(all="ignore"):
            types = [t.type for t in made]
            wanted += compute(op, sample.args, sample.attrs, types)
    f = sg.compile(outputs, inputs=inputs, target=target)
    for got, want in zip(f(*arrays), wanted, strict=True):
        assert_ulp(got, want, 0 if target == "reference" else 1)


@halves
def test_nothing_is_added_up_in_16_bits(dtype):
    x = sg.input("x", ("n", "m"), dtype)
    outputs = [
        sg.sum(x), sg.sum(x, axis=0), sg.sum(x, axis=1), sg.cumsum(x, axis=0)[-1],
        sg.mean(x), sg.var(x), x.T @ x, sg.linalg.norm(x),
        sg.zeros(3, dtype).at[sg.zeros((8, 8), "int64")].add(sg.ones((8, 8), dtype)),
    ]  # fmt: skip
    ones = np.ones((300, 260), dtype)
    for target in TARGETS:
        f = sg.compile(outputs, inputs=[x], target=target)
        total, columns, rows, last, mean, var, product, norm, scattered = f(ones)
        assert total == (np.inf if dtype == F16 else 77824)  # of 78,000
        assert set(columns) == set(last) == {np.float32(300).astype(dtype)}
        assert set(rows) == {np.float32(260).astype(dtype)}
        assert (mean, var) == (1, 0)
        assert set(product.ravel()) == {np.float32(300).astype(dtype)}
        assert norm == np.float32(np.sqrt(300 * 260)).astype(dtype)
        assert scattered.tolist() == [64, 0, 0]


CHAINS = {
    "softmax": lambda x: sg.softmax(x, axis=-1),
    "log_softmax": lambda x: sg.log_softmax(x, axis=0),
    "layer norm": lambda x: (x - sg.mean(x, 1, keepdims=True)) / (sg.std(x) + 1),
    "gelu": lambda x: sg.gelu(x) + sg.gelu(x, approximate="tanh"),
    "logsumexp": lambda x: sg.logsumexp(x, axis=(0, 1)),
    "sines": lambda x: sg.sin(sg.sin(sg.sin(sg.sin(sg.sin(sg.sin(x * 3)))))),
    "indexed": lambda x: x[::-1, 1:] * x[0, 1:] + sg.take(x, np.array([1]), axis=1),
    "pieces": lambda x: sg.concatenate([x, sg.pad(x[:, 1:], ((0, 0), (0, 1)))]),
    "product": lambda x: sg.tanh(x @ x.T) @ x,
    "einsum": lambda x: sg.einsum("ij,kj->ik", x, x),
    "maxima": lambda x: (
        sg.max(x, axis=1) - sg.min(x) + sg.argmax(x, axis=1).astype(x.dtype)
    ),
    "where": lambda x: sg.where(x > 0, x, x * x),
    "sums": lambda x: sg.sum(sg.exp(x), axis=0) + sg.prod(x[:, :2] + 1),
}


@halves
@pytest.mark.parametrize("name", CHAINS)
def test_composites_and_gradients_on_both_targets(name, dtype):
    x = sg.input("x", ("n", 7), dtype)
    y = CHAINS[name](x)
    loss = sg.sum(y * y)
    outputs = [y, sg.grad(loss, x)]
    assert outputs[1].dtype == dtype
    value = np.random.default_rng(0).normal(0, 0.5, (6, 7)).astype(dtype)
    values = [sg.compile(outputs, inputs=[x], target=t)(value) for t in TARGETS]
    wide = sg.input("x", ("n", 7))
    z = CHAINS[name](wide)
    exact = [z, sg.grad(sg.sum(z * z), wide)]
    wanted = sg.compile(exact, inputs=[wide])(value.astype(np.float32))
    scale = 4 if name in ("product", "sums", "einsum") else 1  # sums of products
    for found in (*zip(*values, strict=True),):
        assert_near(found[1] / scale, found[0] / scale)
    for got, want in zip(values[1], wanted, strict=True):
        assert_near(got / scale, (want / scale).astype(got.dtype))


@halves
def test_sample_gradients_have_the_dtype(dtype):
    w = sg.parameter(np.ones((3, 2), dtype), name="w")
    x = sg.input("x", ("n", 3), "float32")
    loss = sg.mean((x.astype(dtype) @ w).astype("float32"))
    assert sg.grad(loss, w).dtype == dtype
    assert sg.grad(loss, x).dtype == np.float32


# In and out


@halves
def test_arrays_of_16_bits_go_in_and_out(dtype):
    x = sg.input("x", ("n",), dtype)
    f = sg.compile(x * 2)
    got = f(np.arange(3, dtype=np.float32))
    assert got.dtype == dtype
    assert got.tolist() == [0, 2, 4]
    assert f([0.5, 1.5, 2.5]).tolist() == [1, 3, 5]
    bound = f.bind(np.ones(4, dtype))
    assert bound().tolist() == [2, 2, 2, 2]
    with pytest.raises(sg.DTypeError, match=f"got {dtype}"):
        sg.compile(sg.input("n", (), "int32"))(np.ones((), dtype))


@halves
def test_numpys_functions_build_graphs(dtype):
    x = sg.input("x", (3,), dtype)
    y = np.exp(x) + np.ones(3, dtype) * x
    assert isinstance(y, sg.Tensor)
    assert y.dtype == dtype
    assert "16[3]" in str(y.type)


@halves
@both
def test_updates_of_16_bit_parameters(dtype, target):
    w = sg.parameter(np.full(3, 2.0, dtype), name="w")
    f = sg.compile(w, updates=[(w, w * 0.5)], target=target)
    f()
    assert w.value.dtype == dtype
    assert w.value.tolist() == [1, 1, 1]


@halves
def test_the_loss_and_what_must_be_finite_may_have_16_bits(dtype):
    x = sg.input("x", ("batch",), dtype)
    w = sg.parameter(np.ones((), dtype), name="w")
    loss = sg.mean((x * w) ** 2)
    trainer = sg.Trainer(loss, sg.optim.SGD(0.25))
    assert trainer.step(x=np.ones(2))["loss"] == 1
    assert w.value == 0.5
    f = sg.compile(w, inputs=[x], finite=[loss], updates=[(w, w * 0)])
    with pytest.raises(sg.NonFiniteError):
        f(np.full(2, np.inf))
    assert w.value == 0.5


@halves
def test_16_bit_parameters_are_saved(dtype, tmp_path):
    x = sg.input("x", ("batch",), dtype)
    w = sg.parameter(np.array([1.5, -2], dtype), name="w")
    loss = sg.mean(x) * sg.sum(w * w)
    trainer = sg.Trainer(loss, sg.optim.SGD(0.0))
    trainer.save(tmp_path / "file")
    w.value = np.zeros(2)
    trainer.load(tmp_path / "file")
    assert w.value.dtype == dtype
    assert w.value.tolist() == [1.5, -2]


@halves
def test_uniform_numbers_stay_below_one(dtype):
    u = sg.random.uniform(sg.random.key(0), (4000,), dtype)
    got, same = (sg.compile(u, target=target)() for target in TARGETS)
    assert np.array_equal(got, same)
    assert got.dtype == dtype
    wide = got.astype(np.float32)
    assert (wide.min(), wide.max()) >= (0, 0.9)
    assert wide.max() < 1
    assert abs(wide.mean() - 0.5) < 0.02


@halves
def test_constants_are_folded_in_float32(dtype):
    total = sg.sum(sg.constant(np.ones(600, dtype))) / 600
    assert sg.compile(total)() == 1
    ((value,), _) = reference.run(Graph.closed((), (total,)), "eval", {})
    assert value == 1


def test_largest_numbers():
    assert sg.compile(sg.nan_to_num(np.float16([np.inf])))()[0] == 65504
    big = sg.nan_to_num(np.array([-np.inf], BF16))
    assert sg.compile(big)()[0] == ml_dtypes.finfo(BF16).min


if is_x86() and "NUMBA_CPU_NAME" not in os.environ:

    def test_processors_without_conversions_give_the_same_bits():
        names = "rounded_once or survive or integers_convert or maxima"
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-k", names, __file__]
        older = {"NUMBA_CPU_NAME": "x86-64-v2", "NUMBA_CPU_FEATURES": ""}
        done = subprocess.run(
            command, env=os.environ | older, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout[-3000:]


def test_integers_beside_halves_count_for_the_dtype_of_composites():
    x, n = sg.input("x", (3,), "float16"), sg.input("n", (3,), "int16")
    assert sg.logaddexp(x, n).dtype == sg.result_type(x, n) == np.float32
    assert sg.mean(x, axis=np.int64(0)).dtype == np.float16
    assert sg.average(x, weights=np.arange(3)).dtype == np.float64
