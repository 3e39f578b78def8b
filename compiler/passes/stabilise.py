"""Numerically stable forms of textbook formulas.

* ``log(sum(exp(x))) = m + log(sum(exp(x - m)))``, m the maximum of x, 0 if not finite
* ``log(exp(x) / b) = x - log(b)``, which makes log(softmax(x)) stable
* ``log(1 + x) = log1p(x)``, ``log(1 - x) = log1p(-x)``, ``exp(x) - 1 = expm1(x)``
* ``log(1 + exp(x)) = softplus(x)``, ``log(sigmoid(x)) = -softplus(-x)``
* ``1 / (1 + exp(-x)) = exp(x) / (1 + exp(x)) = sigmoid(x)``, ``log(exp(x)) = x``
* ``log(exp(x) + exp(y)) = logaddexp(x, y)``, ``log(cosh(x)) = |x| + softplus(-2 |x|) -
  log(2)``, ``log(mean(exp(x)))`` as the sum's
* ``exp(x) / sum(exp(x))``: the maximum subtracted from x first
* ``sqrt(x x) = |x|``; other roots of sums of squares have the derivative 0 at 0

They are found from the structure, whatever function made it.
Source: Higham, Accuracy and Stability of Numerical Algorithms, ch. 1.
"""

from __future__ import annotations

import math

from staticgrad.compiler.passes.match import (
    NodeRule,
    by_table,
    is_number,
    is_op,
    number,
    uniform,
)
from staticgrad.ir.graph import Graph, rewrite
from staticgrad.ir.node import Node, Tensor
from staticgrad.ir.op import Elementwise, Extent, Reduce, View
from staticgrad.ir.size import Dim
from staticgrad.ops.elementwise.activations import logaddexp
from staticgrad.ops.movement.views import broadcasted, reshaped
from staticgrad.ops.named import named

MOST_TERMS = 16  # of a sum that is looked through for squares


def stabilise(graph: Graph) -> Graph:
    """Rewrite ``log(sum(exp(x))) = m + log(sum(exp(x - m)))`` and other RULES."""
    return rewrite(graph, STABILISE)


def _log(node: Node) -> Tensor | None:
    return log_of(node.inputs[0])


def log_of(x: Tensor) -> Tensor | None:
    """Return a stable form of ``log(x)``, or None where there is none."""
    if is_op(x, "exp"):
        return x.inputs[0]
    if is_op(x, "sigmoid"):
        return named("negative", softplus(named("negative", x.inputs[0])))
    if is_op(x, "divide") and is_op(x.inputs[0], "exp"):
        return _log_of_quotient(x)
    if is_op(x, "reduce_sum") and is_op(x.inputs[0], "exp"):
        return log_sum_exp(x)
    if is_op(x, "divide") and log_of(x.inputs[0]) is not None:
        return _log_of_quotient(x)  # a mean of exponentials
    if is_op(x, "multiply"):
        return _log_of_multiple(x)
    if is_op(x, "cosh"):
        return _log_cosh(x.inputs[0])
    if is_op(x, "add") and all(is_op(t, "exp") for t in x.inputs):
        return logaddexp(*(t.inputs[0] for t in x.inputs))
    if is_op(x, "add") or is_op(x, "subtract"):
        return _log_one_plus(x)
    return _log_of_view(x) if isinstance(x.op.code, View) else None


def _log_of_quotient(x: Tensor) -> Tensor:
    logs = [log_of(part) for part in x.inputs]
    numerator, divisor = (
        named("log", part) if log is None else log
        for part, log in zip(x.inputs, logs, strict=True)
    )
    return named("subtract", numerator, divisor)


def _log_of_multiple(x: Tensor) -> Tensor | None:
    """Rewrite ``log(c x) = log(c) + log(x)`` for a number c > 0 and a stable log(x)."""
    for factor, other in (x.inputs, x.inputs[::-1]):
        if is_op(factor, "constant") and _is_count(factor):
            rest = log_of(other)
            return None if rest is None else named("add", named("log", factor), rest)
    return None


def _log_cosh(x: Tensor) -> Tensor:
    size = named("absolute", x)
    rest = softplus(named("multiply", number(-2, x.dtype), size))
    return named("subtract", named("add", size, rest), number(math.log(2), x.dtype))


def _log_of_view(x: Tensor) -> Tensor | None:
    """Rewrite ``log(view(x)) = view(log(x))``, where log(x) has a stable form."""
    views: list[Node] = []
    while isinstance(x.op.code, View):
        views.append(x.node)
        x = x.inputs[0]
    result = log_of(x)
    if result is None:
        return None
    result = broadcasted(result, x.shape)
    for view in reversed(views):
        result = named(view.op.name, result, **view.attrs)
    return result


def log_sum_exp(total: Tensor) -> Tensor | None:
    """Rewrite ``log(sum(exp(x)))`` without overflow; None for a shifted x."""
    (x,) = total.inputs[0].inputs
    axes: tuple[int, ...] = total.node.attrs["axes"]
    if _is_shifted(x):
        return None
    shift, centred = _shifted(x, axes)
    rest = named("reduce_sum", named("exp", centred), axes=axes)
    return named("add", shift, named("log", rest))


def _shifted(x: Tensor, axes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return the maximum of `x` over `axes`, 0 where not finite, and x less it."""
    highest = named("stop_gradient", named("reduce_max", x, axes=axes))
    finite = named("isfinite", highest)
    shift = named("where", finite, highest, number(0, x.dtype))
    kept: list[Dim] = [1 if a in axes else n for a, n in enumerate(x.shape)]
    return shift, named("subtract", x, reshaped(shift, tuple(kept)))


def _is_shifted(x: Tensor) -> bool:
    """Whether `x` is ``y - max(y)``, so that exp(x) cannot overflow."""
    if not is_op(x, "subtract"):
        return False
    y, shift = x.inputs
    while isinstance(shift.op.code, View | Elementwise) and shift.inputs:
        shift = shift.inputs[1 if is_op(shift, "where") else 0]
    return is_op(shift, "reduce_max") and shift.inputs[0] is y


def _log_one_plus(x: Tensor) -> Tensor | None:
    """Rewrite ``log(1 + y)``, in either order of the sum."""
    a, b = x.inputs
    if is_op(x, "add") and is_number(b, 1):
        a, b = b, a
    if not is_number(a, 1):
        return None
    if is_op(x, "subtract"):
        if is_op(b, "sigmoid"):  # 1 - sigmoid(x) = sigmoid(-x)
            return named("negative", softplus(b.inputs[0]))
        return named("log1p", named("negative", b))
    return softplus(b.inputs[0]) if is_op(b, "exp") else named("log1p", b)


def _log1p(node: Node) -> Tensor | None:
    (x,) = node.inputs
    stable = is_op(x, "exp") and not _is_never_positive(x.inputs[0])
    return softplus(x.inputs[0]) if stable else None


def _is_never_positive(x: Tensor) -> bool:
    """Whether `x` is written as -|y| or as where(y > 0, -y, y): exp(x) is at most 1."""
    if is_op(x, "negative"):
        return is_op(x.inputs[0], "absolute")
    if not is_op(x, "where"):
        return False
    condition, a, b = x.inputs
    return is_op(condition, "greater") and is_op(a, "negative") and a.inputs[0] is b


def softplus(x: Tensor) -> Tensor:
    """Return ``log(1 + exp(x))`` as one node."""
    return named("softplus", x)


def _subtract(node: Node) -> Tensor | None:
    x, y = node.inputs
    if is_op(x, "exp") and is_number(y, 1):
        return named("expm1", x.inputs[0])
    if is_op(y, "exp") and is_number(x, 1):
        return named("negative", named("expm1", y.inputs[0]))
    return None


def _divide(node: Node) -> Tensor | None:
    """Rewrite ``1 / (1 + exp(y)) = sigmoid(-y)`` and quotients of exponentials."""
    one, total = node.inputs
    if is_op(one, "exp"):
        found = _sigmoid_of_quotient(one, total)
        return _softmax(one, total) if found is None else found
    if not is_number(one, 1) or not is_op(total, "add"):
        return None
    a, b = total.inputs
    if is_number(b, 1):
        a, b = b, a
    if not is_number(a, 1) or not is_op(b, "exp"):
        return None
    y = b.inputs[0]
    inner = y.inputs[0] if is_op(y, "negative") else named("negative", y)
    return named("sigmoid", inner)


def _sigmoid_of_quotient(e: Tensor, total: Tensor) -> Tensor | None:
    """Rewrite ``exp(x) / (1 + exp(x)) = sigmoid(x)``."""
    if not is_op(total, "add"):
        return None
    for one, other in (total.inputs, total.inputs[::-1]):
        if is_number(one, 1) and _same_exp(other, e):
            return named("sigmoid", e.inputs[0])
    return None


def _same_exp(x: Tensor, e: Tensor) -> bool:
    return is_op(x, "exp") and x.inputs[0] is e.inputs[0]


def _softmax(e: Tensor, total: Tensor) -> Tensor | None:
    """Rewrite ``exp(x) / sum(exp(x))`` with x less its maximum."""
    views: list[Node] = []
    while isinstance(total.op.code, View):
        views.append(total.node)
        total = total.inputs[0]
    (x,) = e.inputs
    if not is_op(total, "reduce_sum") or not _same_exp(total.inputs[0], e):
        return None
    if _is_shifted(x):
        return None
    axes = total.node.attrs["axes"]
    value = named("exp", _shifted(x, axes)[1])
    result = named("reduce_sum", value, axes=axes)
    for view in reversed(views):
        result = named(view.op.name, result, **view.attrs)
    return named("divide", value, result)


def _sqrt(node: Node) -> Tensor | None:
    """Rewrite ``sqrt(x x) = |x|``; the root of a sum of squares gets slope 0 at 0."""
    (x,) = node.inputs
    if is_op(x, "multiply") and x.inputs[0] is x.inputs[1]:
        return named("absolute", x.inputs[0])
    if not _is_sum_of_squares(x):
        return None
    zero, one = number(0, x.dtype), number(1, x.dtype)
    nothing = named("equal", x, zero)
    root = named("sqrt", named("where", nothing, one, x))
    return named("where", nothing, zero, root)


def _is_sum_of_squares(x: Tensor) -> bool:
    """Whether `x` is seen to be a sum, or a mean, of squares."""
    stack = [x]
    for _ in range(MOST_TERMS):
        if not stack:
            return True
        term = stack.pop()
        while (inner := _inside(term)) is not None:
            term = inner
        if is_op(term, "add"):
            stack.extend(term.inputs)
        elif not is_op(term, "multiply") or term.inputs[0] is not term.inputs[1]:
            return False
    return False


def _inside(x: Tensor) -> Tensor | None:
    """Return the tensor of which `x` is a view, a sum or a positive multiple."""
    code = x.op.code
    if isinstance(code, View) or (isinstance(code, Reduce) and code.combine == "add"):
        return x.inputs[0]
    if is_op(x, "divide") and _is_count(x.inputs[1]):
        return x.inputs[0]
    if is_op(x, "multiply"):
        for factor, other in (x.inputs, x.inputs[::-1]):
            if factor is not other and _is_count(factor):
                return other
    return None


def _is_count(x: Tensor) -> bool:
    """Whether `x` is a number > 0 or the size of something."""
    while is_op(x, "cast"):
        x = x.inputs[0]
    value = uniform(x)
    return isinstance(x.op.code, Extent) or (value is not None and bool(value > 0))


RULES: dict[str, NodeRule] = {
    "log": _log,
    "log1p": _log1p,
    "sqrt": _sqrt,
    "subtract": _subtract,
    "divide": _divide,
}

STABILISE = by_table(RULES)
