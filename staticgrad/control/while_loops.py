"""while_loop: loops that run as long as a condition is true."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from staticgrad.control.bodies import (
    Closed,
    close,
    matching,
    placeholder,
    require_callable,
    traced,
)
from staticgrad.control.carries import Settled, settle
from staticgrad.control.records import WHILE
from staticgrad.errors import DTypeError, GraphError
from staticgrad.ir.graph import Graph, apply_multi
from staticgrad.ir.node import Tensor
from staticgrad.ir.size import product
from staticgrad.ir.source import at, here
from staticgrad.ir.types import BOOL, INT64, TensorType
from staticgrad.ops.casting import cast
from staticgrad.ops.leaves import frozen
from staticgrad.ops.named import named
from staticgrad.ops.promotion import as_tensor
from staticgrad.trees import flatten, unflatten

UNBOUNDED = -1
FEW, MANY = 64, 4096  # carries; of 64, 40,000 steps take three forward steps each
KEPT_BYTES = 2**20  # of kept carries, if more than FEW fit


def require_checkpoints(name: str, checkpoints: int) -> None:
    """Raise GraphError for fewer than one checkpoint."""
    if checkpoints < 1:
        raise GraphError(
            f"{name} requires checkpoints >= 1, got {checkpoints}; the first carry is "
            f"one of them{at(here())}"
        )


def while_loop(
    cond: Callable[[Any], Any],
    body: Callable[[Any], Any],
    init: Any,
    max_steps: int | None = None,
    checkpoints: int | None = None,
) -> Any:
    """Run ``carry = body(carry)`` as long as ``cond(carry)`` is true.

    `init` is the first carry, a tree of array_likes; it keeps its structure, shapes and
    dtypes. `cond` gives a bool scalar. Both may use tensors from outside, with
    gradients. Returns the last carry. Layers that draw do so as in `scan`.

    Reverse mode goes back over the steps from carries that were kept on the way, at
    most `checkpoints` of them at one time, however many steps there are: every carry
    while there is room, then some of them, from which steps are run again (online
    checkpointing). By default there is room for `max_steps` carries or 4,096, but for
    no more than 1 MiB, or for 64 where that is more. The gradient can be differentiated
    again, in both modes, with as few carries.

    A call raises LoopLimitError, and changes nothing, if the condition is still true
    after `max_steps` steps; None is no limit. Building raises as `scan` does.

    >>> import staticgrad as sg
    >>> x = sg.input("x", ())
    >>> y = sg.while_loop(lambda v: v > 1, lambda v: v / 2, x)
    >>> float(sg.compile(y, target="reference")(20.0))
    0.625
    """
    if max_steps is not None and max_steps < 0:
        raise GraphError(
            f"while_loop requires max_steps >= 0, got {max_steps}; None is no limit"
            f"{at(here())}"
        )
    if checkpoints is not None:
        require_checkpoints("while_loop", checkpoints)
    return _while(
        "while_loop", _of_carry("while_loop", cond), _of_carry("while_loop", body),
        init, max_steps, checkpoints,
    )  # fmt: skip


def _of_carry(name: str, fn: Any) -> Callable[[Tensor, Any], Any]:
    require_callable(name, fn)
    return lambda _, carry: fn(carry)


def counted_loop(
    lower: Tensor,
    upper: Tensor,
    body: Callable[[Tensor, Any], Any],
    init: Any,
    checkpoints: int | None,
) -> Any:
    """Run ``carry = body(i, carry)`` from `lower` to `upper`, which may be Tensors."""

    def going(done: Tensor, _: Any) -> Tensor:
        return named("less", named("add", done, lower), upper)

    def step(done: Tensor, carry: Any) -> Any:
        return body(named("add", done, lower), carry)

    return _while("fori_loop", going, step, init, None, checkpoints)


def _while(
    name: str,
    cond: Callable[[Tensor, Any], Any],
    body: Callable[[Tensor, Any], Any],
    init: Any,
    max_steps: int | None,
    checkpoints: int | None,
) -> Any:
    """Build a while_loop; both functions take the number of the step, see `_closed`."""
    leaves, treedef = flatten(init)
    start = [as_tensor(leaf) for leaf in leaves]
    position = placeholder(TensorType((), INT64), "position")
    marks: list[int] = []
    conditions: list[Tensor] = []

    def call(given: Sequence[Tensor]) -> list[Tensor]:
        carry = unflatten(treedef, given)
        asked = traced(name, cond, (position, carry), position)
        marks.append(asked.mark)
        conditions.append(_as_bool(name, asked.tree))
        new = traced(name, body, (position, carry), position)
        return [as_tensor(leaf) for leaf in matching(name, treedef, new.tree)]

    kinds = [t.type for t in start]
    done = settle(name, kinds, treedef.paths, call)
    closed = _closed(marks[-1], position, done, conditions[-1])
    first = [cast(t, p.dtype) for t, p in zip(start, done.given, strict=True)]
    counted = len(closed.graphs[1].outputs) > len(first)
    first = [frozen(np.asarray(0)), *first] if counted else first
    limit = UNBOUNDED if max_steps is None else int(max_steps)
    outputs = apply_multi(
        WHILE, *first, *closed.captures, graphs=closed.graphs, carries=len(first),
        limit=limit, checkpoints=checkpoints or _room([t.type for t in first], limit),
    )  # fmt: skip
    return unflatten(treedef, outputs[int(counted) : len(first)])


def _closed(mark: int, position: Tensor, done: Settled, going: Tensor) -> Closed:
    """Return the condition and step; `position` is a carry if one of them uses it."""
    later = named("add", position, frozen(np.asarray(1)))
    results = [(going,), (later, *done.results)]
    closed = close(mark, (position, *done.given), results)
    read = {t for g in closed.graphs for t in g.outputs}
    for node in (n for g in closed.graphs for n in g.nodes if n is not later.node):
        read.update(node.inputs)
    if position in read:
        return closed
    asked, step = closed.graphs
    graphs = (
        Graph.closed(asked.inputs[1:], asked.outputs),
        Graph.closed(step.inputs[1:], step.outputs[1:]),
    )
    for graph, whole in zip(graphs, closed.graphs, strict=True):
        graph.records.update(whole.records)
    return Closed(graphs, closed.captures)


def _room(kinds: Sequence[TensorType], limit: int) -> int:
    """Return the number of carries to keep where the user gives none."""
    elements = [product(t.shape) * t.dtype.itemsize for t in kinds]
    known = sum(size for size in elements if isinstance(size, int))
    if not known or not all(isinstance(size, int) for size in elements):
        return FEW
    most = MANY if limit == UNBOUNDED else max(limit, 1)
    return min(most, max(FEW, KEPT_BYTES // known))


def _as_bool(name: str, value: Any) -> Tensor:
    found = as_tensor(value)
    if found.shape != () or found.dtype != BOOL:
        raise DTypeError(
            f"{name} requires a condition that is a bool scalar, got {found.type}; "
            f"compare it, or reduce it with sg.all or sg.any{at(here())}"
        )
    return found
