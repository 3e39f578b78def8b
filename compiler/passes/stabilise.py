"""Numerically stable forms of what people write as in a textbook.

* ``log(sum(exp(x))) = m + log(sum(exp(x - m)))``, m the maximum of x, 0 if not finite
* ``log(exp(x) / b) = x - log(b)``, which makes log(softmax(x)) stable
* ``log(1 + x) = log1p(x)``, ``log(1 - x) = log1p(-x)``, ``exp(x) - 1 = expm1(x)``
* ``log(1 + exp(x)) = softplus(x)``, ``log(sigmoid(x)) = -softplus(-x)``
* ``1 / (1 + exp(-x)) = sigmoid(x)``, ``log(exp(x)) = x``

They are found from the structure, whatever function made it.
Source: Higham, Accuracy and Stability of Numerical Algorithms, ch. 1.
"""

from __future__ import annotations

from staticgrad.compiler.passes.match import (
    NodeRule,
    by_table,
    is_number,
    is_op,
    number,
)
from staticgrad.ir.graph import Graph, rewrite
from staticgrad.ir.node import Node, Tensor
from staticgrad.ir.op import Elementwise, View
from staticgrad.ir.size import Dim
from staticgrad.ops.named import named
from staticgrad.ops.shape import broadcasted, reshaped


def stabilise(graph: Graph) -> Graph:
    """``log(sum(exp(x))) = m + log(sum(exp(x - m)))`` and the rest of RULES."""
    return rewrite(graph, STABILISE)


def _log(node: Node) -> Tensor | None:
    return log_of(node.inputs[0])


def log_of(x: Tensor) -> Tensor | None:
    """A stable form of ``log(x)``, or None where there is none."""
    if is_op(x, "exp"):
        return x.inputs[0]
    if is_op(x, "sigmoid"):
        return named("negative", softplus(named("negative", x.inputs[0])))
    if is_op(x, "divide") and is_op(x.inputs[0], "exp"):
        return _log_of_quotient(x)
    if is_op(x, "reduce_sum") and is_op(x.inputs[0], "exp"):
        return log_sum_exp(x)
    if is_op(x, "add") or is_op(x, "subtract"):
        return _log_one_plus(x)
    return _log_of_view(x) if isinstance(x.op.code, View) else None


def _log_of_quotient(x: Tensor) -> Tensor:
    numerator, divisor = x.inputs
    log = log_of(divisor)
    if log is None:
        log = named("log", divisor)
    return named("subtract", numerator.inputs[0], log)


def _log_of_view(x: Tensor) -> Tensor | None:
    """``log(view(x)) = view(log(x))``, where log(x) has a stable form."""
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
    """``log(sum(exp(x)))`` without overflow; None where x is shifted already."""
    (x,) = total.inputs[0].inputs
    axes: tuple[int, ...] = total.node.attrs["axes"]
    if _is_shifted(x):
        return None
    highest = named("stop_gradient", named("reduce_max", x, axes=axes))
    finite = named("isfinite", highest)
    shift = named("where", finite, highest, number(0, x.dtype))
    kept: list[Dim] = [1 if a in axes else n for a, n in enumerate(x.shape)]
    centred = named("subtract", x, reshaped(shift, tuple(kept)))
    rest = named("reduce_sum", named("exp", centred), axes=axes)
    return named("add", shift, named("log", rest))


def _is_shifted(x: Tensor) -> bool:
    """Whether `x` is ``y - max(y)``, so that exp(x) cannot overflow."""
    if not is_op(x, "subtract"):
        return False
    y, shift = x.inputs
    while isinstance(shift.op.code, View | Elementwise) and shift.inputs:
        shift = shift.inputs[1 if is_op(shift, "where") else 0]
    return is_op(shift, "reduce_max") and shift.inputs[0] is y


def _log_one_plus(x: Tensor) -> Tensor | None:
    """``log(1 + y)``, in whatever order it is written."""
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
    """``log(1 + exp(x))`` as one node."""
    return named("softplus", x)


def _subtract(node: Node) -> Tensor | None:
    x, y = node.inputs
    if is_op(x, "exp") and is_number(y, 1):
        return named("expm1", x.inputs[0])
    if is_op(y, "exp") and is_number(x, 1):
        return named("negative", named("expm1", y.inputs[0]))
    return None


def _divide(node: Node) -> Tensor | None:
    """``1 / (1 + exp(y)) = sigmoid(-y)``."""
    one, total = node.inputs
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


RULES: dict[str, NodeRule] = {
    "log": _log,
    "log1p": _log1p,
    "subtract": _subtract,
    "divide": _divide,
}

STABILISE = by_table(RULES)
