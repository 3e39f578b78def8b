"""Rejected arguments: `<op> requires <rule>, got <types>; <advice>`."""

import re
from pathlib import Path

import numpy as np
import pytest

import staticgrad as sg
from staticgrad.ir.graph import apply
from staticgrad.ir.op import OPS

FILE = Path(__file__).name
BAD = [
    pytest.param(op, bad, id=f"{name}-{number}")
    for name, op in OPS.items()
    for number, bad in enumerate(op.bad())
]


@pytest.mark.parametrize(("op", "bad"), BAD)
def test_an_op_refuses(op, bad):
    arrays = [np.asarray(arg) for arg in bad.args]
    inputs = [sg.input(f"x{n}", a.shape, a.dtype) for n, a in enumerate(arrays)]
    with pytest.raises(bad.error, match=re.escape(bad.match)) as caught:
        apply(op, *inputs, **bad.attrs)
    text = str(caught.value)
    assert text.startswith(f"{op.name} requires ")
    assert f"  at {FILE}:" in text


def x(*shape, dtype="float32"):
    return sg.input("x", shape, dtype)


CALLS = [
    (lambda: x(3) + x(4), sg.ShapeError, "add requires shapes that broadcast, got "
     "float32[3] and float32[4]; 3 and 4 differ"),
    (lambda: x("n") * x("m"), sg.ShapeError, "n and m differ"),
    (lambda: x(2, dtype="bool") - x(2, dtype="bool"), sg.DTypeError,
     "subtract requires a number's dtype (not bool), got bool[2] and bool[2]"),
    (lambda: -x(2, dtype="bool"), sg.DTypeError, "negative requires a number's dtype"),
    (lambda: sg.sum(x(2, 3), axis=2), sg.ShapeError,
     "sum requires an axis in -2..1, got 2"),
    (lambda: sg.sum(x(2, 3), axis=(0, 0)), sg.ShapeError,
     "sum requires distinct axes, got (0, 0)"),
    (lambda: sg.max(x(2, 0)), sg.ShapeError,
     "max requires at least one element, got float32[2, 0]; an empty tensor has no"),
    (lambda: sg.argmax(x(0)), sg.ShapeError, "argmax requires at least one element"),
    (lambda: sg.softmax(x(2), axis=1), sg.ShapeError, "softmax requires an axis in"),
    (lambda: x(2) & x(2), sg.DTypeError, "bitwise_and requires integers or bools, got"),
    (lambda: ~x(2), sg.DTypeError, "invert requires integers or bools, got float32[2]"),
    (lambda: sg.exp("text"), sg.DTypeError, "array_like requires"),
    (lambda: sg.exp(None), sg.DTypeError, "array_like requires"),
    (lambda: sg.exp(1j), sg.DTypeError, "array_like requires"),
    (lambda: sg.exp(np.zeros(2, "complex64")), sg.DTypeError, "got complex64"),
    (lambda: sg.exp([[1.0], [1.0, 2.0]]), sg.DTypeError, "array_like requires numbers"),
    (lambda: sg.add([x(2), x(3)], 1), sg.ShapeError,
     "array_like requires elements of one shape, got float32[2] and float32[3]"),
    (lambda: x(2, dtype="uint8") + 300, sg.DTypeError,
     "constant requires uint8, got 300, which is outside of its range"),
    (lambda: x(2, dtype="int8") * -129, sg.DTypeError, "requires int8, got -129"),
    (lambda: x(2, dtype="int32") ** -1, sg.DTypeError, "power requires exponents >= 0"),
    (lambda: sg.reciprocal(x(2, dtype="int32")), sg.DTypeError, "reciprocal requires"),
    (lambda: x(2).astype("complex64"), sg.DTypeError, "requires a dtype that is one"),
    (lambda: x(2).astype("nonsense"), sg.DTypeError, "astype requires"),
    (lambda: sg.average(x(2), weights=x(3)), sg.ShapeError, "average requires weights"),
    (lambda: list(x("n")), sg.ShapeError,
     "iter requires a first axis whose size is a number, got float32[n]"),
    (lambda: len(x("n")), sg.ShapeError, "len requires a first axis"),
    (lambda: list(x()), TypeError, "iter requires at least one axis, got float32[]"),
    (lambda: len(x()), TypeError, "len requires at least one axis"),
    (lambda: sg.zeros((2, -1)), sg.ShapeError, "zeros requires a shape of numbers"),
    (lambda: sg.ones("n"), sg.ShapeError, "ones requires a shape"),
    (lambda: sg.by_mode(x(2), x(3)), sg.ShapeError, "by_mode requires shapes"),
    (lambda: sg.argmax(x(2, 3), axis=(0, 1)), sg.ShapeError,
     "argmax requires an axis that is an integer, got (0, 1)"),
    (lambda: sg.sum(x(2), axis="x"), sg.ShapeError, "an axis that is an integer"),
    (lambda: sg.sum(x(2), axis=0.0), sg.ShapeError, "an axis that is an integer"),
    (lambda: sg.flip(x(2), 1.0), sg.ShapeError, "flip requires an axis that is"),
    (lambda: sg.expand_dims(x(2), None), sg.ShapeError, "expand_dims requires an axis"),
    (lambda: sg.moveaxis(x(2), "a", 0), sg.ShapeError, "moveaxis requires an axis"),
    (lambda: sg.roll(x(2), 1, "a"), sg.ShapeError, "roll requires an axis that is"),
    (lambda: sg.sum(x(), axis=0), sg.ShapeError,
     "sum requires an array that has axes, got axis 0 of a scalar"),
    (lambda: sg.repeat(x("n"), -1), sg.ShapeError, "requires sizes >= 0"),
    (lambda: sg.tile(x("n"), (2, -1)), sg.ShapeError, "requires sizes >= 0"),
    (lambda: sg.broadcast_to(x(), (-1, 2)), sg.ShapeError, "requires sizes >= 0"),
    (lambda: sg.tri(-1), sg.ShapeError, "requires sizes >= 0"),
    (lambda: sg.bincount(np.arange(2), length=-1), sg.ShapeError,
     "requires a number of segments >= 0, got -1"),
    (lambda: sg.diff(x(2), -1), sg.ShapeError, "diff requires a number of times"),
    (lambda: sg.digitize(x(2), [1, 0, 2]), sg.ShapeError,
     "digitize requires edges that only increase or only decrease"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "match"), CALLS)
def test_a_function_refuses(call, error, match):
    with pytest.raises(error, match=re.escape(match)) as caught:
        call()
    assert f"  at {FILE}:" in str(caught.value)


def test_the_line_is_that_of_the_call():
    left, right = x(3), x(4)
    with pytest.raises(sg.ShapeError) as caught:
        left + right
    line = caught.tb.tb_lineno
    assert str(caught.value).endswith(f"  at {FILE}:{line}")


VALUES = [
    (lambda t: bool(t), sg.GraphError, "bool requires a value, got float32[]"),
    (lambda t: 1 if t else 0, sg.GraphError, "sg.where(condition, x, y)"),
    (lambda t: 0 < t < 1, sg.GraphError, "bool requires a value"),
    (lambda t: float(t), TypeError, "float requires a value, got float32[]"),
    (lambda t: int(t), TypeError, "int requires a value"),
    (lambda t: complex(t), TypeError, "complex requires a value"),
    (lambda t: [1, 2][t], TypeError, "index requires a value"),
    (lambda t: range(t), TypeError, "index requires a value"),
    (lambda t: np.asarray(t), TypeError, "asarray requires values, got float32[]"),
    (lambda t: np.array([t, t]), TypeError, "asarray requires values"),
    (lambda t: t.item(), sg.GraphError, "item() requires a value"),
    (lambda t: t.__setitem__(0, 1), TypeError, "item assignment requires an array"),
]


@pytest.mark.parametrize(("use", "error", "match"), VALUES)
def test_a_tensor_has_no_value_yet(use, error, match):
    with pytest.raises(error, match=re.escape(match)) as caught:
        use(x())
    assert f"  at {FILE}:" in str(caught.value)


@pytest.mark.parametrize("other", [None, "text", object(), {}])
def test_operators_with_other_classes(other):
    t = x(2)
    with pytest.raises(TypeError):
        t + other
    with pytest.raises(TypeError):
        other - t
    assert (t == other) is False
    assert (t != other) is True
