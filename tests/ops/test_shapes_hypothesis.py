"""Every op that takes any shape: shapes by hypothesis, sizes literal and symbolic.

Elementwise ops get shapes that broadcast both ways, reductions and views one shape with
axes of size 0 and 1; each is compared with the NumPy function of its record, on the cpu
target with one symbol per size, so that one compile serves many shapes.
"""

import functools

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import staticgrad as sg
from staticgrad.ir.graph import apply
from staticgrad.ir.op import OPS, Elementwise, Reduce

BASIC = settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
SIZES = st.integers(0, 4)


def sample_dtypes(op):
    """The dtypes of the first sample, and its attributes."""
    sample = op.samples()[0]
    return [np.asarray(a).dtype for a in sample.args], sample.attrs


def values(shape, dtype, seed):
    random = np.random.default_rng(seed)
    if dtype.kind == "b":
        return random.integers(0, 2, shape).astype(bool)
    if dtype.kind == "f":
        return random.uniform(0.1, 0.9, shape).astype(dtype)
    return random.integers(1, 4, shape).astype(dtype)


def close(got, want):
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    if want.dtype.kind == "f":
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)
    else:
        np.testing.assert_array_equal(got, want)


ELEMENTWISE = [
    op
    for op in OPS.values()
    if isinstance(op.code, Elementwise) and op.samples() and op.name != "keep"
]


def inputs_of(op, pattern):
    """Inputs for a pattern (which axes of which are 1 or missing), and attributes."""
    dtypes, attrs = sample_dtypes(op)
    inputs = []
    for k, (dtype, axes) in enumerate(zip(dtypes, pattern, strict=True)):
        shape = tuple(1 if one else name for one, name in axes)
        inputs.append(sg.input(f"x{k}", shape, dtype))
    return inputs, attrs


@functools.cache
def elementwise(op, pattern):
    """One executable for a pattern: which axes of which input are 1 or missing."""
    inputs, attrs = inputs_of(op, pattern)
    return sg.compile(apply(op, *inputs, **attrs), inputs=inputs)


PATTERNS = {
    1: [((),), (((0, "n"), (0, "m")),), (((1, ""), (0, "m")),)],
    2: [
        (((0, "n"), (0, "m")), ((0, "m"),)),
        (((0, "n"), (1, "")), ((0, "p"), (1, ""), (0, "m"))),
        ((), ((0, "n"),)),
    ],
    3: [
        (((0, "n"), (1, "")), ((0, "m"),), ()),
        (((0, "m"),), ((0, "n"), (1, "")), ((1, ""), (0, "m"))),
    ],
}


def drawn(op, data):
    """A pattern, and arrays whose sizes hypothesis draws."""
    dtypes, _ = sample_dtypes(op)
    pattern = data.draw(st.sampled_from(PATTERNS[len(dtypes)]))
    sizes = {name: data.draw(SIZES) for name in "nmp"}
    arrays = [
        values(tuple(1 if one else sizes[name] for one, name in axes), dtype, k)
        for k, (dtype, axes) in enumerate(zip(dtypes, pattern, strict=True))
    ]
    return pattern, arrays


@pytest.mark.parametrize("op", ELEMENTWISE, ids=repr)
@BASIC
@given(data=st.data())
def test_elementwise_ops_broadcast(op, data):
    _, attrs = sample_dtypes(op)
    pattern, arrays = drawn(op, data)
    with np.errstate(all="ignore"):
        want = np.asarray(op.numpy(*arrays, **attrs))
    close(elementwise(op, pattern)(*arrays), want)


REDUCTIONS = [op for op in OPS.values() if isinstance(op.code, Reduce)]


@functools.cache
def reduction(op, axes):
    dtype = np.asarray(op.samples()[0].args[0]).dtype
    x = sg.input("x", ("n", "m", 1, "p"), dtype)
    return sg.compile(apply(op, x, axes=axes), inputs=[x]), dtype


@pytest.mark.parametrize("op", REDUCTIONS, ids=repr)
@BASIC
@given(
    sizes=st.tuples(SIZES, SIZES, SIZES),
    axes=st.sampled_from([(), (0,), (1, 3), (2,), (0, 1, 2, 3), (3,)]),
)
def test_reductions_of_any_shape(op, sizes, axes):
    compiled, dtype = reduction(op, axes)
    n, m, p = sizes
    x = values((n, m, 1, p), dtype, 0)
    empty = any(x.shape[axis] == 0 for axis in axes)
    if empty and op.code.combine in ("maximum", "minimum"):
        return  # refused: test_ops_errors
    close(compiled(x), np.asarray(op.numpy(x, axes=axes)))


# ---- views, places and index functions of static shapes ------------------------------

MOVES = {
    "ravel": lambda m, x: m.ravel(x),
    "transpose": lambda m, x: m.transpose(x),
    "flip": lambda m, x: m.flip(x),
    "tile": lambda m, x: m.tile(x, 2),
    "repeat": lambda m, x: m.repeat(x, 2),
    "roll": lambda m, x: m.roll(x, 1),
    "expand": lambda m, x: m.expand_dims(x, 0),
    "squeeze": lambda m, x: m.squeeze(x),
    "pad": lambda m, x: m.pad(x, 1),
    "stack": lambda m, x: m.stack([x, x], -1),
    "atleast_3d": lambda m, x: m.atleast_3d(x),
    "append": lambda m, x: m.append(x, x),
    "outer": lambda m, x: m.outer(x, x),
    "kron": lambda m, x: m.kron(x, x),
    "dot": lambda m, x: m.dot(x, m.transpose(x)) if x.ndim < 3 else x,
    "einsum": lambda m, x: m.einsum("...->...", x),
    "diagflat": lambda m, x: m.diagflat(x),
    "ellipsis": lambda m, x: x[..., None],
}


@BASIC
@given(shape=st.lists(st.integers(0, 3), max_size=3).map(tuple))
def test_moves_of_any_shape(shape):
    x = sg.input("x", shape, "float64")
    f = sg.compile([move(sg, x) for move in MOVES.values()], inputs=[x])
    array = values(shape, np.dtype("float64"), 1)
    for got, move in zip(f(array), MOVES.values(), strict=True):
        close(got, np.asarray(move(np, array)))


@st.composite
def keys(draw):
    """A shape and a key that NumPy accepts for it."""
    shape = tuple(draw(st.lists(st.integers(0, 4), min_size=1, max_size=4)))
    together = draw(st.sampled_from([(), (2,), (1,), (2, 1), (0,), (3, 2)]))
    parts = []
    for n in shape[: draw(st.integers(1, len(shape)))]:
        kind = draw(st.sampled_from(["slice", "integer", "array", "none"]))
        if kind == "none":
            parts.append(None)
        if kind == "integer" and n:
            parts.append(draw(st.integers(-n, n - 1)))
        elif kind == "array" and n:
            seed = draw(st.integers(0, 9))
            parts.append(np.random.default_rng(seed).integers(-n, n, together))
        else:
            bound = st.none() | st.integers(-5, 5)
            step = draw(st.sampled_from([None, 1, 2, -1, -3]))
            parts.append(slice(draw(bound), draw(bound), step))
    if draw(st.booleans()):
        parts.insert(draw(st.integers(0, len(parts))), Ellipsis)
    try:  # an Ellipsis or None moves the others to axes of other sizes
        np.empty(shape)[tuple(parts)]
    except IndexError:
        assume(False)
    return shape, tuple(parts)


@settings(parent=BASIC, max_examples=150)
@given(keys())
def test_any_key_reads_as_numpy_reads(drawn):
    shape, key = drawn
    x = sg.input("x", shape, "float64")
    array = values(shape, np.dtype("float64"), 2)
    f = sg.compile(x[key], inputs=[x], target="reference")
    close(f(array), array[key])


@settings(parent=BASIC, max_examples=40)
@given(keys(), st.booleans())
def test_any_key_compiles_and_writes_as_numpy_does(drawn, data):
    shape, key = drawn
    array = values(shape, np.dtype("float64"), 3)
    leaves, given_values, parts = [], [], []
    for part in key:
        if data and isinstance(part, np.ndarray):
            leaves.append(sg.input(f"i{len(leaves)}", part.shape, "int64"))
            given_values.append(part)
            parts.append(leaves[-1])
        else:
            parts.append(part)
    x = sg.input("x", shape, "float64")
    place = x.at[tuple(parts)]
    f = sg.compile([place.get(), place.add(1.5), place.set(-1.0)], inputs=[x, *leaves])
    read, added, changed = f(array, *given_values)
    close(read, array[key])
    want = array.copy()
    np.add.at(want, key, 1.5)
    close(added, want)
    want = array.copy()
    want[key] = -1.0
    close(changed, want)
