"""``checkpoint``: rematerialisation in the backward pass.

The function is traced into a graph of its own, and that is put in place twice: as it
is, and, when its derivative is asked for, once more behind the cotangent of its results
(AFTER). So nothing between its arguments and its results waits for the backward pass.
The second copy reads other tensors than the first, which keeps common subexpressions
apart, and draws with the same keys, so a mask of dropout is the same mask.

Source: T. Chen, B. Xu, C. Zhang, C. Guestrin, "Training deep nets with sublinear memory
cost" (2016).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any

import numpy as np

from staticgrad.control.bodies import close, placeholder, traced
from staticgrad.differentiate.gradients import vjp
from staticgrad.differentiate.reverse import zeros
from staticgrad.differentiate.stable_forms import substituted
from staticgrad.ir.graph import Graph, apply, apply_multi
from staticgrad.ir.node import Constant, Tensor
from staticgrad.ir.op import After, Op, Sample, define
from staticgrad.ir.size import Dim
from staticgrad.ir.types import TensorType, is_float
from staticgrad.ops.movement.views import broadcasted, passing, reshaped
from staticgrad.ops.promotion import as_tensor
from staticgrad.trees import flatten, unflatten
from staticgrad.vectorize.batch_rules import batched


def checkpoint(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Rematerialise `fn` in the backward pass: only arguments and results are kept.

    What is between them is computed again when the gradient is. `fn` may close over
    parameters and other tensors, take and return trees, be called inside bodies of
    loops and branches and under vmap, and draw random numbers (the same ones again);
    it makes no updates. Values and gradients are those of `fn`, but for the rounding of
    sums, whose order depends on what shares a kernel.

    Raises GraphError for what is no function and for updates inside.

    >>> import staticgrad as sg
    >>> x = sg.input("x", (3,))
    >>> y = sg.checkpoint(lambda v: sg.tanh(sg.exp(v)))(x)
    >>> dx = sg.grad(sg.sum(y), x)
    >>> sg.compile(dx)([0.0, -1.0, -2.0]).round(3).tolist()
    [0.41999998688697815, 0.32199999690055847, 0.13300000131130219]
    """

    @wraps(fn)
    def run(*args: Any) -> Any:
        leaves, structure = flatten(args)
        given = [as_tensor(leaf) for leaf in leaves]
        inner = [placeholder(x.type, f"arg_{k}") for k, x in enumerate(given)]
        found = traced("checkpoint", fn, unflatten(structure, inner))
        results = [as_tensor(leaf) for leaf in flatten(found.tree)[0]]
        closed = close(found.mark, inner, [results])
        inputs = (*given, *closed.captures)
        made = _checkpointed(closed.graphs[0], inputs)
        return unflatten(found.treedef, list(made))

    return run


def _checkpointed(body: Graph, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    made = _placed(body, inputs)
    op = replace(CHECKPOINT, outputs=len(made))
    return apply_multi(op, *made, *inputs, body=body)


def _placed(body: Graph, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return the results of `body` on other inputs."""
    places: Mapping[Tensor, Tensor] = dict(zip(body.inputs, inputs, strict=True))
    return substituted(body.outputs, places)


def _after_shape(x: TensorType, trigger: TensorType) -> Any:
    return x.shape


AFTER: Op = define(
    "after",
    shape=_after_shape,
    dtype=lambda x, trigger: x.dtype,
    vjp=lambda g, y, x, trigger: (g, None),
    jvp=lambda ts, y, x, trigger: zeros(x) if ts[0] is None else ts[0],
    code=After(),
    numpy=lambda x, trigger: x.copy(),
    samples=lambda: [
        Sample((np.array([[0.5, -1.5, 2.0]]), np.array(1.0)), grad=False),
        Sample((np.array([1, 2], np.int32), np.array([True])), grad=False),
    ],
    bad=list,
)


def _cotangents(g: Any, y: Any, *inputs: Tensor, body: Graph) -> list[Tensor | None]:
    """Return the inputs' cotangents through a copy of the body that waits for g."""
    totals = g if isinstance(g, tuple) else (g,)
    given = inputs[len(body.outputs) :]
    trigger = next(total for total in totals if total is not None)
    late = [x if isinstance(x, Constant) else apply(AFTER, x, trigger) for x in given]
    pairs = zip(_placed(body, late), totals, strict=True)
    known = [(made, total) for made, total in pairs if total is not None]
    asked = [x for x in late if is_float(x.dtype)]
    results, seeds = [made for made, _ in known], [total for _, total in known]
    found = iter(vjp(results, asked, seeds, unused="zero"))
    own: list[Tensor | None] = [None] * len(body.outputs)
    return own + [next(found) if is_float(x.dtype) else None for x in late]


def _first(xs: Sequence[Any], count: int) -> Any:
    return xs[0] if count == 1 else tuple(xs[:count])


def _batch(n: Dim, *inputs: Tensor, body: Graph) -> Any:
    """Return the batched body, inlined."""
    count = len(body.outputs)
    examples = [
        placeholder(TensorType((n, *x.shape), x.dtype), f"arg_{k}")
        for k, x in enumerate(body.inputs)
    ]
    found = batched(body.outputs, dict(zip(body.inputs, examples, strict=True)), n)
    outputs = [found[y] if y in found else _alike(y, n) for y in body.outputs]
    closed = Graph.closed(examples, outputs)
    return _first(_checkpointed(closed, inputs[count:]), count)


def _alike(y: Tensor, n: Dim) -> Tensor:
    """Broadcast a result that depends on no argument over the examples."""
    return broadcasted(reshaped(y, (1, *y.shape)), (n, *y.shape))


CHECKPOINT: Op = passing(
    "checkpoint",
    lambda *inputs, body: len(body.outputs),
    vjp=_cotangents,
    jvp=lambda ts, y, *xs, body: _first(ts, len(body.outputs)),
    batch=_batch,
    samples=lambda: [
        Sample((np.array([0.5, -1.5]), np.array([0.5, -1.5])), {"body": _same()}, False)
    ],
)


def _same() -> Graph:
    """Return the argument, for the sample."""
    x = placeholder(TensorType((2,), np.dtype(np.float64)), "x")
    return Graph.closed([x], [x])
