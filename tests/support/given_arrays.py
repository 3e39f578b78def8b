"""Random arrays, and what a compiled function makes of some."""

import itertools

import numpy as np

import staticgrad as sg


def numbers(*shape, dtype="float64", seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def value_of(function, *arrays, target="cpu", symbolic=(), of=(0,)):
    """`function` of inputs like the arrays; those in `of` have symbolic axes."""
    shapes = [list(a.shape) for a in arrays]
    for number, axis in itertools.product(of, symbolic):
        shapes[number][axis] = f"n{axis}"
    leaves = [
        sg.input(f"x{k}", tuple(s), a.dtype)
        for k, (s, a) in enumerate(zip(shapes, arrays, strict=True))
    ]
    return sg.compile(function(*leaves), inputs=leaves, target=target)(*arrays)
