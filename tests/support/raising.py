"""A call that raises with a number that was computed; prints what reached Python."""

import numba
import numpy as np

import staticgrad as sg


@numba.njit
def rooted(x):
    if x < 0:
        raise KeyError("negative", x)
    return x**0.5


x = sg.input("x", (3,), "float64")
op = sg.custom_op(
    "rooted", kind="scalar", forward=rooted, backward=numba.njit(lambda g, y, x: g)
)
try:
    sg.compile(op(x))(np.array([1.0, 4.0, -2.0]))
except KeyError as error:
    print(error)
