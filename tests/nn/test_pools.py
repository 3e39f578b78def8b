"""Pools against loops over their windows, their gradients, sequences, kernels."""

import numpy as np
import pytest
from given_arrays import numbers, value_of
from tolerances import assert_near

import staticgrad as sg

TARGETS = ("reference", "cpu")


def pooled(x, window, stride, padding, dilation, ceil, reduce_to):
    """Windows one after the other; `reduce_to` gets rows and columns of each."""
    size, counts = x.shape[2:], []
    for n, k, s, p, d in zip(size, window, stride, padding, dilation, strict=True):
        span = n + 2 * p - d * (k - 1) - 1
        count = (-(-span // s) if ceil else span // s) + 1
        counts.append(count - (ceil and (count - 1) * s >= n + p))
    y = np.empty((*x.shape[:2], *counts), x.dtype)
    for place in np.ndindex(*counts):
        rows, columns = (
            list(range(p * s - m, p * s - m + d * (k - 1) + 1, d))
            for p, s, m, d, k in zip(
                place, stride, padding, dilation, window, strict=True
            )
        )
        y[(..., *place)] = reduce_to(x, rows, columns)
    return y


def inside(numbers, n):
    return [i for i in numbers if 0 <= i < n]


def largest(x, rows, columns):
    rows, columns = inside(rows, x.shape[2]), inside(columns, x.shape[3])
    return x[:, :, rows][:, :, :, columns].max((2, 3))


POOLS = [
    # window, stride, padding, dilation, ceil_mode
    ((2, 2), (2, 2), (0, 0), (1, 1), False),
    ((3, 3), (2, 2), (1, 1), (1, 1), False),
    ((2, 3), (1, 2), (1, 0), (2, 1), False),
    ((3, 2), (2, 2), (1, 1), (1, 1), True),
    ((2, 2), (3, 3), (0, 0), (1, 1), True),
]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize("pool", POOLS, ids=str)
def test_max_pool2d_is_its_definition(pool, dtype, target):
    x = (100 * numbers(2, 3, 8, 9)).astype(dtype)
    got = value_of(
        lambda x: sg.nn.max_pool2d(x, *pool), x, target=target, symbolic=(0,)
    )
    np.testing.assert_array_equal(got, pooled(x, *pool, largest))


def pool_gradient(pool):
    def function(x, g):
        return sg.grad(sg.sum(sg.nn.max_pool2d(x, *pool) * g), x)

    return function


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("pool", POOLS, ids=str)
def test_the_gradient_goes_to_the_largest(pool, target):
    x = numbers(2, 3, 8, 9)
    g = numbers(*pooled(x, *pool, largest).shape)
    got = value_of(pool_gradient(pool), x, g, target=target, symbolic=(0,), of=(0, 1))
    want = np.zeros_like(x)
    for n, c, p, q in np.ndindex(*g.shape):
        value = pooled(x[n : n + 1, c : c + 1], *pool, largest)[0, 0, p, q]
        want[n, c][x[n, c] == value] += g[n, c, p, q]
    assert_near(got, want)


@pytest.mark.parametrize("target", TARGETS)
def test_the_first_of_equal_ones_and_of_nans_wins(target):
    x = np.array([[1.0, 1, 0, np.nan], [1, 1, np.nan, 5]], np.float32)[None, None]
    g = np.array([[2.0, 3.0]], np.float32)[None, None]
    got = value_of(pool_gradient(((2, 2),)), x, g, target=target)
    np.testing.assert_array_equal(got[0, 0], [[2, 0, 0, 3], [0, 0, 0, 0]])
    y = value_of(lambda x: sg.nn.max_pool2d(x, 2), x, target=target)
    np.testing.assert_array_equal(y[0, 0], [[1, np.nan]])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize("pool", [p for p in POOLS if p[3] == (1, 1)], ids=str)
def test_avg_pool2d_is_its_definition(pool, include, target):
    x = numbers(2, 3, 8, 9)
    window, stride, padding, _, ceil = pool

    def mean(x, rows, columns):
        counted = [
            inside(numbers, n) if not include else [i for i in numbers if i < n + p]
            for numbers, n, p in zip((rows, columns), x.shape[2:], padding, strict=True)
        ]
        rows, columns = inside(rows, x.shape[2]), inside(columns, x.shape[3])
        total = x[:, :, rows][:, :, :, columns].sum((2, 3))
        return total / (len(counted[0]) * len(counted[1]))

    got = value_of(
        lambda x: sg.nn.avg_pool2d(x, window, stride, padding, ceil, include),
        x,
        target=target,
        symbolic=(0,),
    )
    assert_near(got, pooled(x, *pool, mean))


def test_pools_of_sequences():
    x = numbers(2, 3, 9)
    for one, two in (
        (sg.nn.max_pool1d, sg.nn.max_pool2d),
        (sg.nn.avg_pool1d, sg.nn.avg_pool2d),
    ):
        got = value_of(lambda x, f=one: f(x, 3, 2, 1), x)
        want = value_of(lambda x, f=two: f(x, (1, 3), (1, 2), (0, 1)), x[:, :, None])
        assert_near(got, want[:, :, 0])


@pytest.mark.parametrize("size", [(1, 1), (4, 3), (3, 7), 5])
def test_adaptive_avg_pool2d(size):
    x = numbers(2, 3, 8, 9)
    got = value_of(lambda x: sg.nn.adaptive_avg_pool2d(x, size), x)
    rows, columns = size if isinstance(size, tuple) else (size, size)
    want = np.empty((2, 3, rows, columns))
    for p, q in np.ndindex(rows, columns):
        part = x[:, :, p * 8 // rows : -(-(p + 1) * 8 // rows)]
        part = part[..., q * 9 // columns : -(-(q + 1) * 9 // columns)]
        want[:, :, p, q] = part.mean((2, 3))
    assert_near(got, want)
    one = value_of(sg.nn.global_avg_pool2d, x, symbolic=(0, 2, 3))
    assert_near(one, x.mean((2, 3)))


def test_adaptive_avg_pool1d_and_flatten():
    x = numbers(2, 3, 8)
    got = value_of(lambda x: sg.nn.adaptive_avg_pool1d(x, 4), x)
    assert_near(got, x.reshape(2, 3, 4, 2).mean(3))
    assert value_of(lambda x: sg.nn.flatten(x, 1), x).shape == (2, 24)
    assert value_of(sg.nn.flatten, x, symbolic=(0,)).shape == (48,)


def test_a_pool_of_relu_is_one_kernel():
    x = sg.input("x", ("n", 8, 8, 16))
    graph = sg.nn.max_pool2d(sg.transpose(x, (0, 3, 1, 2)), 2)
    f = sg.compile(sg.transpose(graph, (0, 2, 3, 1)))
    f(np.zeros((2, 8, 8, 16), np.float32))
    assert len(f.memory.plan.schedule.kernels) == 1
