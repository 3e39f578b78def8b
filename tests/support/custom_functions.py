"""Functions of arrays that Numba compiles, as operations: running sums."""

import numba
import numpy as np

import staticgrad as sg


@numba.njit
def running(x):
    return np.cumsum(x)


@numba.njit
def running_backward(g, y, x):
    return np.cumsum(g[::-1])[::-1].copy()


@numba.njit
def filling(x, y):
    total = 0.0
    for i in range(len(x)):
        total += x[i]
        y[i] = total


@numba.njit
def filling_backward(g, y, x, dx):
    total = 0.0
    for i in range(len(x) - 1, -1, -1):
        total += g[i]
        dx[i] = total


returning = sg.custom_op(
    "running", kind="array", forward=running, backward=running_backward
)
filled = sg.custom_op(
    "running", kind="array", forward=filling, backward=filling_backward
)
mixed = sg.custom_op(
    "running",
    kind="array",
    forward=running,
    backward=lambda g, y, x: sg.flip(sg.cumsum(sg.flip(g))),
)
