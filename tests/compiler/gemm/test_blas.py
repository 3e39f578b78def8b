"""Matrix products through OpenBLAS: every layout, empty sizes, NaNs, fixed parts."""

import ctypes

import numpy as np
import pytest
from hand_made import product

from staticgrad.compiler.gemm import blas

FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
TOLERANCE = {FLOAT32: 1e-5, FLOAT64: 1e-13}  # times k: sums are reassociated


def run(kernel, a, b, c):
    """The product of the arrays' memory, part by part."""
    table = blas.describe(kernel, {})
    operands = np.array([x.ctypes.data for x in (a, b, c)], np.int64)
    kernel = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 5)(blas.kernel_address())
    for item in range(table[blas.ITEMS]):
        kernel(operands.ctypes.data, table.ctypes.data, item, item + 1, 0)
    return c


def numbers(shape, dtype, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
@pytest.mark.parametrize("transposed", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 1, 7), (1, 9, 4), (33, 65, 17)])
def test_layouts_and_uninitialised_results(dtype, transposed, shape):
    m, n, k = shape
    a, b = numbers((m, k), dtype), numbers((k, n), dtype, 1)
    left = np.ascontiguousarray(a.T if transposed[0] else a)
    right = np.ascontiguousarray(b.T if transposed[1] else b)
    kernel = product(
        m, n, k, dtype, transposed=tuple(map(bool, transposed)),
        ld=(left.shape[1], right.shape[1], n),
    )  # fmt: skip
    c = run(kernel, left, right, np.full((m, n), np.nan, dtype))
    np.testing.assert_allclose(c, a @ b, atol=TOLERANCE[dtype] * k)


@pytest.mark.parametrize(("alpha", "beta"), [(1, 1), (-0.5, 1), (2, 0), (1, 0.25)])
def test_alpha_and_beta(alpha, beta):
    a, b = numbers((6, 4), FLOAT64), numbers((4, 3), FLOAT64, 1)
    before = numbers((6, 3), FLOAT64, 2)
    kernel = product(6, 3, 4, FLOAT64, alpha=alpha, beta=beta)
    c = run(kernel, a, b, before.copy())
    np.testing.assert_allclose(c, alpha * (a @ b) + beta * before, rtol=1e-12)


@pytest.mark.parametrize("beta", [0.0, 1.0, 0.5])
def test_an_empty_sum_is_zero(beta):
    before = np.full((2, 3), 4.0) if beta else np.full((2, 3), np.nan)
    kernel = product(2, 3, 0, FLOAT64, beta=beta)
    c = run(kernel, np.empty((2, 0)), np.empty((0, 3)), before.copy())
    assert (c == (beta * 4.0)).all()


@pytest.mark.parametrize(("m", "n"), [(0, 3), (3, 0), (0, 0)])
def test_empty_results_are_not_touched(m, n):
    kernel = product(m, n, 2, FLOAT64)
    c = np.full(4, 7.0)
    run(kernel, np.ones((m, 2)), np.ones((2, n)), c)
    assert (c == 7).all()


@pytest.mark.parametrize("batch", [0, 1, 3, 1000])
def test_batches(batch):
    a, b = numbers((batch, 4, 5), FLOAT32), numbers((batch, 5, 6), FLOAT32, 1)
    kernel = product(4, 6, 5, batch=batch, batch_strides=(20, 30, 24))
    c = run(kernel, a, b, np.full((batch, 4, 6), np.nan, FLOAT32))
    np.testing.assert_allclose(c, a @ b, atol=1e-5)


def test_one_operand_for_the_whole_batch():
    a, b = numbers((7, 4, 5), FLOAT64), numbers((5, 6), FLOAT64, 1)
    kernel = product(4, 6, 5, FLOAT64, batch=7, batch_strides=(20, 0, 24))
    c = run(kernel, a, b, np.empty((7, 4, 6)))
    np.testing.assert_allclose(c, a @ b, rtol=1e-12)


def test_offsets_and_rows_that_are_further_apart():
    a, b = numbers((6, 8), FLOAT64), numbers((9, 7), FLOAT64, 1)
    c = np.full((5, 10), 3.0)
    kernel = product(2, 3, 4, FLOAT64, ld=(8, 7, 10), offsets=(8 + 2, 7 + 1, 10 + 4))
    run(kernel, a, b, c)
    np.testing.assert_allclose(c[1:3, 4:7], a[1:3, 2:6] @ b[1:5, 1:4], rtol=1e-12)
    c[1:3, 4:7] = 3.0
    assert (c == 3.0).all()


@pytest.mark.parametrize("shape", [(2000, 96, 128), (96, 2000, 128), (700, 700, 64)])
def test_parts_cover_the_result_once(shape):
    m, n, k = shape
    a, b = numbers((m, k), FLOAT32), numbers((k, n), FLOAT32, 1)
    kernel = product(m, n, k)
    assert blas.describe(kernel, {})[blas.ITEMS] > 1
    once = run(kernel, a, b, np.full((m, n), np.nan, FLOAT32))
    np.testing.assert_allclose(once, a @ b, atol=1e-3)
    added = run(product(m, n, k, beta=1.0), a, b, once.copy())
    np.testing.assert_allclose(added, 2 * once, atol=1e-3)


@pytest.mark.parametrize("special", [np.nan, np.inf])
@pytest.mark.parametrize("shape", [(1, 1, 1), (4, 4, 4), (40, 50, 60)])
def test_special_values_reach_the_result(special, shape):
    m, n, k = shape
    a, b = np.zeros((m, k), FLOAT32), np.ones((k, n), FLOAT32)
    a[-1, -1] = special
    c = run(product(m, n, k), a, b, np.empty((m, n), FLOAT32))
    assert not np.isfinite(c[-1]).any()
    assert (c[:-1] == 0).all()


def test_the_library_has_one_thread_and_is_not_numpys():
    library = blas.library()
    assert library.scipy_openblas_get_num_threads() == 1
    path = library._name
    assert "scipy_openblas32" in path
    # kept for the process: the same handle at each call
    assert blas.library() is library
    assert (
        blas.address_of(FLOAT32)
        == ctypes.cast(library.scipy_sgemm_, ctypes.c_void_p).value
    )


def test_sizes_beyond_32_bits_are_refused():
    with pytest.raises(ValueError, match=r"below 2\*\*31"):
        blas.describe(product(2**31, 1, 1), {})
