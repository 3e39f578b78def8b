"""How far results may be from NumPy's, by dtype; a looser one is beside its reason."""

import numpy as np

EPS = {np.dtype("float32"): 2.0**-23, np.dtype("float64"): 2.0**-52}
# Sums are taken in another order than NumPy's; gradients chain several functions.
RTOL = {np.dtype("float32"): 2e-5, np.dtype("float64"): 1e-11}
ATOL = {np.dtype("float32"): 2e-6, np.dtype("float64"): 1e-12}


def assert_ulp(got, want, ulp):
    """`got` equals `want` within `ulp` units in the last place of the larger values.

    Shape and dtype are equal; NaN and infinities are at the same places; integers and
    bools are equal. A unit is that of the expected value, at least the smallest normal
    number's.
    """
    got, want = np.asarray(got), np.asarray(want)
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    if want.dtype.kind != "f":
        np.testing.assert_array_equal(got, want)
        return
    finite = np.isfinite(want)
    np.testing.assert_array_equal(got[~finite], want[~finite])
    unit = np.maximum(np.abs(want[finite]), np.finfo(want.dtype).tiny) * EPS[want.dtype]
    with np.errstate(over="ignore", invalid="ignore"):
        error = np.abs(got[finite] - want[finite]) / unit
    assert np.all(error <= ulp), f"{np.max(error)} ulp, allowed {ulp}"


def assert_near(got, want):
    """`got` equals `want` within the tolerance of its dtype."""
    got, want = np.asarray(got), np.asarray(want)
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    if want.dtype.kind != "f":
        np.testing.assert_array_equal(got, want)
        return
    dtype = want.dtype
    np.testing.assert_allclose(got, want, rtol=RTOL[dtype], atol=ATOL[dtype])
