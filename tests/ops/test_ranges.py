"""Which gradients need no guard, and that they are the same without one."""

from __future__ import annotations

import numpy as np
import pytest

import staticgrad as sg
from staticgrad.ir.node import Constant, Tensor
from staticgrad.ir.op import OPS
from staticgrad.ir.types import largest
from staticgrad.ops import guarded
from staticgrad.ops.leaves import frozen
from staticgrad.ops.named import named
from staticgrad.ops.value_ranges import is_finite, is_nonzero, range_of

BINARY = ["add", "multiply", "subtract"]
UNARY = sorted(op.name for op in OPS.values() if op.interval and op.name not in BINARY)
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.3, 30.0, -700.0, 1e30, 1e200, -1e200]
INFINITE = [np.inf, -np.inf, np.nan]

BOUNDED = {
    "gaussian": lambda x: sg.exp(-x * x),
    "half a square": lambda x: sg.exp(-0.5 * (x - 3) ** 2),
    "laplacian": lambda x: sg.exp(-abs(x)),
    "cauchy": lambda x: sg.log1p(x * x),
    "root": lambda x: sg.sqrt(x * x + 1),
    "inverse root": lambda x: sg.rsqrt(x**2 + 0.1),
    "exp of tanh": lambda x: sg.exp(sg.tanh(x)),
    "log of 2 + sin": lambda x: sg.log(2 + sg.sin(x)),
}
QUOTIENTS = {  # of which the quotient itself may be infinite
    "quotient": lambda x: x / (1 + x * x),
    "softsign": lambda x: x / (1 + abs(x)),
}
GUARDED = {
    "exp": sg.exp,
    "log1p": sg.log1p,
    "root": lambda x: sg.sqrt(x * x * x * x),
    "exp of a product": lambda x: sg.exp(x * (x + 1)),
    "exp of a large number": lambda x: sg.exp(x * x),
    "one plus exp": lambda x: 1 / (1 + sg.exp(x)) ** 0.5,
    "inverse": lambda x: 1 / sg.sin(x),
}


def ops_of(function) -> set[str]:
    """The names of the ops of a gradient, as the rules make it."""
    x = sg.input("x", (4,), "float64")
    gradient = sg.grad(sg.sum(sg.where(x > 0.5, function(x), 0)), x)
    seen: set[int] = set()
    names, left = set(), [gradient.node]
    while left:
        node = left.pop()
        if id(node) not in seen:
            seen.add(id(node))
            names.add(node.op.name)
            left += [tensor.node for tensor in node.inputs]
    return names


@pytest.mark.parametrize("name", BOUNDED)
def test_what_is_bounded_needs_no_guard(name):
    assert not {n for n in ops_of(BOUNDED[name]) if n.startswith("guarded")}


@pytest.mark.parametrize("name", QUOTIENTS)
def test_a_divisor_that_is_not_zero_needs_no_guard(name):
    assert "guarded_divide" not in ops_of(QUOTIENTS[name])


@pytest.mark.parametrize("name", GUARDED)
def test_what_is_not_bounded_is_guarded(name):
    assert {n for n in ops_of(GUARDED[name]) if n.startswith("guarded")}


def test_two_tensors_are_guarded():
    # a NaN of one would else reach the gradient of the other
    x, y = (sg.input(name, (3,), "float64") for name in "xy")
    assert range_of(x * x + y * y) == (-np.inf, np.inf)
    masked = sg.where(x > 0, sg.log1p(x * x + y * y), 0)
    f = sg.compile(sg.grad(sg.sum(masked), y), inputs=[x, y], target="reference")
    np.testing.assert_array_equal(f(np.full(3, np.nan), np.ones(3)), 0)


@pytest.mark.parametrize("name", BOUNDED | QUOTIENTS)
def test_gradients_are_those_with_guards(name, monkeypatch):
    def gradient(x):
        masked = sg.where(x < 0.5, (BOUNDED | QUOTIENTS)[name](x), 0)
        return sg.grad(sg.sum(masked), x)

    def values():
        x = sg.input("x", (13,), "float64")
        f = sg.compile(gradient(x), inputs=[x], target="reference")
        return f(np.array(SPECIAL + INFINITE))

    plain = values()
    monkeypatch.setattr(guarded, "is_finite", lambda d: isinstance(d, Constant))
    monkeypatch.setattr(guarded, "is_nonzero", lambda d: isinstance(d, Constant))
    with_guards = values()
    np.testing.assert_array_equal(plain[:-3], with_guards[:-3])
    np.testing.assert_array_equal(np.isnan(plain[-1]), np.isnan(with_guards[-1]))


def composed(rng, x: Tensor) -> Tensor:
    """A function of `x` made of what ranges are known of."""
    for _ in range(rng.integers(1, 6)):
        kind = rng.integers(3)
        if kind == 0:
            x = named("multiply", x, x)
        elif kind == 1:
            x = named(str(rng.choice(UNARY)), x)
        else:
            number = frozen(np.float32(rng.choice([-2.0, -0.5, 0.0, 1e-3, 1.0, 40.0])))
            pair = (x, number) if rng.integers(2) else (number, x)
            x = named(str(rng.choice(BINARY)), *pair)
    return x


@pytest.mark.parametrize("seed", range(150))
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_values_lie_in_their_range(seed):
    rng = np.random.default_rng(seed)
    numbers = rng.standard_normal(64) * 10.0 ** rng.integers(-20, 20, 64)
    given = np.array([*numbers, *SPECIAL[:8], *INFINITE], np.float32)
    with sg.Graph():
        x = sg.input("x", given.shape)
        y = composed(rng, x)
    values = sg.compile(y, inputs=[x], target="reference")(given).astype(np.float64)
    values = values[~np.isnan(values)]
    low, high = range_of(y)
    slack = 1e-6 * np.abs(values)
    assert np.all(values >= low - slack)
    assert np.all(values <= high + slack)
    assert not is_nonzero(y) or np.all(values != 0)
    assert not is_finite(y) or np.all(np.abs(values) <= largest(y.dtype))


def test_constants_are_looked_at():
    assert is_nonzero(frozen(np.array([1.0, -1.0])))
    assert not is_nonzero(frozen(np.array([1.0, 0.0])))
    assert is_finite(frozen(np.array([1.0, -1.0])))
    assert not is_finite(frozen(np.array([1.0, np.nan])))
    assert range_of(frozen(np.zeros(0))) == (-np.inf, np.inf)


def test_small_products_may_be_zero():
    x = sg.input("x", (3,), "float32")
    tiny = frozen(np.float32(1e-30))
    y = named("multiply", named("add", x * x, tiny), tiny)  # 1e-60 is 0 in float32
    assert not is_nonzero(y)
    assert is_nonzero(named("add", x * x, tiny))
