"""einsum, tensordot, dot, kron and the like against NumPy, and their derivatives."""

import numpy as np
import pytest

import staticgrad as sg
from staticgrad.errors import ShapeError
from staticgrad.ir.graph import topological
from staticgrad.testing import gradcheck, gradgradcheck


def numbers(*shape, dtype="float64", seed=0):
    return np.random.default_rng(seed + len(shape)).normal(size=shape).astype(dtype)


SIZES = {"a": 2, "b": 3, "c": 4, "d": 5, "e": 2, "i": 3, "j": 4, "k": 5, "n": 3}

EINSUMS = [
    "ij,jk->ik", "ij,jk", "ij,kj->ki", "ji,jk->ik", "ij,ij->", "ij,ij->ij", "ij->ji",
    "ij->", "ij->i", "ij->j", "ii->i", "ii", "ii->", "iij->ij", "iji->j", "i,i",
    "i,j->ij", "i,j->ji", "ij,j->i", "ij,i->j", "ba", "b,a", "abc,abd->acd",
    "abc,acd->abd", "abc,bcd->ad", "abcd,cd->ab", "abcd,abed->abce", "bqhd,bkhd->bhqk",
    "bhqk,bkhd->bqhd", "bi,ijk,bk->bj", "ij,jk,kl->il", "ij,jk,kl,lm->im",
    "ab,bc,cd->ad", "ij,kl->ijkl", "ijk,ijk->k", "ijk->kji", "i,ij,j->", "ii,ij->j",
    "ijj,jk->ik", "...ij,...jk->...ik", "...ij,jk", "...i,...i->...", "i...->...i",
    "...", "...,...->...", "ij...,j...->i...", "a,b,c->abc", "abc,d->dabc", "ab,ab,ab",
    ",ij->ij", ",->",
]  # fmt: skip


def operands(subscripts, dtype="float64"):
    sizes = {**SIZES, "q": 3, "h": 2, "l": 2, "m": 3}
    found = []
    for k, part in enumerate(subscripts.split("->")[0].split(",")):
        dots = () if "..." not in part else (2, 3)
        before, _, after = part.partition("...")
        shape = [sizes[c] for c in before], [sizes[c] for c in after]
        found.append(numbers(*shape[0], *dots, *shape[1], dtype=dtype, seed=k))
    return found


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("part", range(3))
def test_einsum_equals_numpys(part, target):
    inputs, outputs, arrays, want = [], [], [], []
    for subscripts in EINSUMS[part::3]:
        args = operands(subscripts)
        leaves = [
            sg.input(f"x{len(inputs) + k}", a.shape, a.dtype)
            for k, a in enumerate(args)
        ]
        inputs += leaves
        arrays += args
        outputs.append(sg.einsum(subscripts, *leaves))
        want.append(np.einsum(subscripts, *args))
    f = sg.compile(outputs, inputs=inputs, target=target)
    for got, expected in zip(f(*arrays), want, strict=True):
        assert got.shape == np.shape(expected)
        np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("subscripts", EINSUMS)
def test_derivatives_of_einsum(subscripts):
    args = operands(subscripts)

    def function(*x):
        return sg.einsum(subscripts, *x) ** 2

    assert gradcheck(function, *args, directions=2)
    assert gradgradcheck(function, *args)


def test_einsum_broadcasts_axes_of_size_1():
    x, y = numbers(1, 3), numbers(2, 3, seed=1)
    got = sg.compile(sg.einsum("ij,ij->ij", x, y))()
    np.testing.assert_allclose(got, np.einsum("ij,ij->ij", x, y))
    got = sg.compile(sg.einsum("ij,jk->ik", x, numbers(3, 1)))()
    np.testing.assert_allclose(got, np.einsum("ij,jk->ik", x, numbers(3, 1)))
    got = sg.compile(sg.einsum("...i,...i->...", x, y))()
    np.testing.assert_allclose(got, np.einsum("...i,...i->...", x, y))


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool"])
def test_einsum_of_integers(dtype):
    x = (numbers(3, 4) * 5).astype(dtype)
    y = (numbers(4, 2) * 5).astype(dtype)
    for subscripts in ("ij,jk->ik", "ij,jk->", "ij,jk->ki"):
        got = sg.compile(sg.einsum(subscripts, x, y))()
        if dtype == "int32":  # NumPy sums in the operands' dtype, sg as sg.sum does
            assert np.array_equal(got, np.einsum(subscripts, x, y))


def test_einsum_takes_symbolic_sizes():
    q, k = sg.input("q", ("b", "t", 2, 4)), sg.input("k", ("b", "s", 2, 4))
    scores = sg.einsum("bqhd,bkhd->bhqk", q, k)
    f = sg.compile(sg.einsum("bhqk,bkhd->bqhd", scores, k), inputs=[q, k])
    for b, t, s in ((1, 1, 1), (2, 3, 5), (3, 7, 2)):
        x, y = numbers(b, t, 2, 4, dtype="f4"), numbers(b, s, 2, 4, dtype="f4")
        want = np.einsum("bqhd,bkhd,bkhe->bqhe", x, y, y)
        np.testing.assert_allclose(f(x, y), want, rtol=1e-4, atol=1e-5)


def test_einsum_multiplies_in_a_good_order():
    a, b, c = sg.input("a", (2, 90)), sg.input("b", (90, 80)), sg.input("c", (80, 1))
    y = sg.einsum("ij,jk,kl->il", a, b, c)
    products = [n for n in topological([y]) if n.op.name == "matmul"]
    assert {n.types[0].shape for n in products} <= {(2, 80), (2, 1), (90, 1), (1, 2)}
    assert (2, 80) not in {n.types[0].shape for n in products} or len(products) == 2


CASES = {
    "dot": lambda m, x, y: m.dot(x, y),
    "dot_vectors": lambda m, x, y: m.dot(x[0], y[:, 0]),
    "dot_many": lambda m, x, y: m.dot(x.reshape(3, 2, 2), x.reshape(3, 2, 2)),
    "vdot": lambda m, x, y: m.vdot(x, y),
    "inner": lambda m, x, y: m.inner(x, x[:2]),
    "inner_scalar": lambda m, x, y: m.inner(x, 2.0),
    "outer": lambda m, x, y: m.outer(x, y),
    "tensordot": lambda m, x, y: m.tensordot(x, y, 1),
    "tensordot_axes": lambda m, x, y: m.tensordot(x, y, axes=((0, 1), (1, 0))),
    "tensordot_none": lambda m, x, y: m.tensordot(x, y, 0),
    "kron": lambda m, x, y: m.kron(x, y),
    "kron_ranks": lambda m, x, y: m.kron(x[0], y.reshape(2, 2, 3)),
    "matmul_rank": lambda m, x, y: m.matmul(x.reshape(3, 2, 2), y.reshape(2, 6)),
    "matmul_vector": lambda m, x, y: m.matmul(y.T, x[0]),
    "matmul_batch": lambda m, x, y: m.matmul(x.reshape(3, 1, 2, 2), y.reshape(3, 2, 2)),
    "power": lambda m, x, y: m.linalg.matrix_power(x[:, :3], 5),
    "power_0": lambda m, x, y: m.linalg.matrix_power(x.reshape(3, 2, 2), 0),
    "multi_dot": lambda m, x, y: m.linalg.multi_dot([x, y, x, y[:, 1]]),
    "multi_dot_row": lambda m, x, y: m.linalg.multi_dot([x[:, 0], x, y]),
}


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_products_equal_numpys(target):
    x, y = sg.input("x", (3, 4), "float64"), sg.input("y", (4, 3), "float64")
    outputs = {name: call(sg, x, y) for name, call in CASES.items()}
    f = sg.compile(outputs, inputs=[x, y], target=target)
    a, b = numbers(3, 4), numbers(4, 3)
    found = f(a, b)
    for name, call in CASES.items():
        want = call(np, a, b)
        assert found[name].shape == np.shape(want)
        np.testing.assert_allclose(found[name], want, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_derivatives_of_products(name):
    def function(x, y):
        return sg.sum(CASES[name](sg, x, y) ** 2) + sg.sum(x * y.T)

    assert gradcheck(function, numbers(3, 4) / 2, numbers(4, 3) / 2, directions=2)
    assert gradgradcheck(function, numbers(3, 4) / 2, numbers(4, 3) / 2)


def test_vecdot():
    x, y = numbers(4, 3), numbers(2, 1, 3, seed=1)
    got = sg.compile([sg.vecdot(x, y), sg.vecdot(x, x, axis=0)])()
    np.testing.assert_allclose(got[0], np.vecdot(x, y))
    np.testing.assert_allclose(got[1], np.vecdot(x, x, axis=0))


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda x: sg.einsum("ij", x, x), "an operand for each of 1 subscripts"),
        (lambda x: sg.einsum("ijk", x), "a letter per axis"),
        (lambda x: sg.einsum("i", x), "a letter per axis"),
        (lambda x: sg.einsum("ij->k", x), "stand once and in an operand"),
        (lambda x: sg.einsum("ij->ii", x), "stand once and in an operand"),
        (lambda x: sg.einsum("i1", x), "letters and at most one"),
        (lambda x: sg.einsum("...ij->ij", x[None]), r"\.\.\. in the result"),
        (lambda x: sg.einsum("ij,ij", x, x.T), "one size for 'i'"),
        (lambda x: sg.einsum("ii", x), "equal sizes where 'i' is repeated"),
        (lambda x: sg.einsum(x, "ij"), "subscripts as a string"),
        (lambda x: sg.tensordot(x, x, 1), "equal sizes"),
        (lambda x: sg.tensordot(x, x, 3), "at most all axes"),
        (lambda x: sg.vecdot(x, x.T), "equal sizes along axis -1"),
        (lambda x: sg.linalg.matrix_power(x, 2), "square matrices"),
        (lambda x: sg.linalg.matrix_power(x[:, :2], -1), "a number >= 0"),
        (lambda x: sg.linalg.multi_dot([x]), "at least two arrays"),
        (lambda x: sg.linalg.multi_dot([x, x[0], x]), "matrices, and vectors"),
    ],
)
def test_refusals(call, match):
    with pytest.raises(ShapeError, match=match) as caught:
        call(sg.input("x", (2, 3)))
    assert "test_products.py:" in str(caught.value)
