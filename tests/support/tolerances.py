"""Tolerances against NumPy by dtype; a looser one is beside its reason."""

import ml_dtypes
import numpy as np

F16, BF16 = np.dtype("float16"), np.dtype(ml_dtypes.bfloat16)
HALF = (F16, BF16)
EPS = {
    np.dtype("float32"): 2.0**-23,
    np.dtype("float64"): 2.0**-52,
    F16: 2.0**-10,
    BF16: 2.0**-7,
}
# Sums are taken in another order than NumPy's; gradients chain several functions.
# The reference rounds each result to 16 bits, fused kernels what they store.
RTOL = {np.dtype("float32"): 2e-5, np.dtype("float64"): 1e-11, F16: 6e-3, BF16: 5e-2}
ATOL = {np.dtype("float32"): 2e-6, np.dtype("float64"): 1e-12, F16: 6e-3, BF16: 5e-2}


def assert_ulp(got, want, ulp):
    """`got` equals `want` within `ulp` units in the last place of the larger values.

    Shape and dtype are equal; NaN and infinities are at the same places; integers and
    bools are equal. A unit is that of the expected value, at least the smallest normal
    number's.
    """
    got, want = np.asarray(got), np.asarray(want)
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    if want.dtype.kind not in "fV":
        np.testing.assert_array_equal(got, want)
        return
    dtype = want.dtype
    if dtype in HALF:
        got, want = got.astype(np.float32), want.astype(np.float32)
    finite = np.isfinite(want)
    np.testing.assert_array_equal(got[~finite], want[~finite])
    smallest = float(ml_dtypes.finfo(dtype).smallest_normal)
    unit = np.maximum(np.abs(want[finite]), smallest) * EPS[dtype]
    with np.errstate(over="ignore", invalid="ignore"):
        error = np.abs(got[finite] - want[finite]) / unit
    assert np.all(error <= ulp), f"{np.max(error)} ulp, allowed {ulp}"


def assert_near(got, want):
    """`got` equals `want` within the tolerance of its dtype."""
    got, want = np.asarray(got), np.asarray(want)
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    if want.dtype.kind not in "fV":
        np.testing.assert_array_equal(got, want)
        return
    dtype = want.dtype
    if dtype in HALF:
        got, want = got.astype(np.float32), want.astype(np.float32)
    np.testing.assert_allclose(got, want, rtol=RTOL[dtype], atol=ATOL[dtype])
