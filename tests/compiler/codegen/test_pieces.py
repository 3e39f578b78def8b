"""Do long bodies that run in pieces compute what they did, with little memory?"""

import numpy as np
import pytest

import staticgrad as sg
from staticgrad.compiler.codegen.loops.split_bodies import pieces_of
from staticgrad.compiler.kernel_ir.kernels import LoopKernel

X = np.linspace(-3, 3, 1300).astype(np.float32)  # two blocks, and a part of one


def compiled(build, gradient=False):
    with sg.Graph():
        x = sg.input("x", (1300,))
        y = build(x)
        outputs = sg.grad(sg.sum(y), x) if gradient else y
    return [
        sg.compile(outputs, inputs=[x], target=target)
        for target in ("cpu", "reference")
    ]


def sines(x):
    for _ in range(20):
        x = sg.sin(x)
    return x


def links(x):
    h = x
    for _ in range(12):
        h = sg.tanh(h) * 0.9 + x
    return h


def pairs(x):
    """Two values cross each cut, and change places."""
    a, b = x, sg.exp(-x * x)
    for _ in range(8):
        a, b = sg.tanh(b - a), sg.sigmoid(a + b)
    return a + b


def mixed(x):
    """Areas of two dtypes."""
    wide = x.astype("float64")
    for _ in range(5):
        x = sg.tanh(x + sg.sin(wide).astype("float32"))
        wide = sg.tanh(wide) * 1.5
    return x.astype("float64") + wide


def taken(x):
    """A checked index is read by two pieces."""
    index = sg.as_tensor(np.arange(1300) * 7 % 1300)
    return sines(sines(x[index]) * sg.as_tensor(X[::-1].copy())[index])


BUILDS = (sines, links, pairs, mixed, taken)


@pytest.mark.parametrize("gradient", [False, True], ids=["value", "gradient"])
@pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.__name__)
def test_pieces_compute_the_same(build, gradient):
    f, reference = compiled(build, gradient)
    np.testing.assert_allclose(f(X), reference(X), rtol=2e-5, atol=1e-6)


def all_pieces(f):
    kernels = [k for k in f.target.code.schedule.kernels if isinstance(k, LoopKernel)]
    return [p for kernel in kernels for p in pieces_of(kernel).values()]


def test_equal_pieces_are_one_piece_in_a_loop():
    f, _ = compiled(sines)
    source = f.source()
    assert source.count("for again in range(") == 1
    assert source.count(" = sin(") < 5


def test_areas_are_used_again():
    (found,) = all_pieces(compiled(sines)[0])
    assert len(found.pieces) > 10
    assert len(found.areas) == 1


@pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.__name__)
def test_a_value_stays_in_its_area_until_it_was_taken_last(build):
    for found in all_pieces(compiled(build)[0]):
        held = {}
        last = {v: n for n, p in enumerate(found.pieces) for v, _ in p.taken}
        for number, piece in enumerate(found.pieces):
            for value, area in piece.taken:
                assert held[area] == value
            for value, area in piece.given:
                before = held.get(area)
                assert before is None or last[before] <= number
                held[area] = value
