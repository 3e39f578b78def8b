"""The ops of control flow: "switch", "scan", "while_loop", and "replay".

The last one is what derivatives are made of that keep few states of a loop.

Their bodies are nested Graphs whose captures are explicit inputs; Control (op.py)
documents their inputs and outputs. The rules here compare the bodies with the operands,
so the verifier finds a body that does not fit.

Derivatives are made by reverse_control.py and forward_control.py, which need the
derivatives of bodies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from staticgrad.errors import CompilerBug, DTypeError, LoopLimitError, ShapeError
from staticgrad.ir.graph import Graph
from staticgrad.ir.op import VARIABLE, Control, Op, define, snapshot_words
from staticgrad.ir.size import Dim, Shape
from staticgrad.ir.types import BOOL, INT64, DType, TensorType

Array: TypeAlias = npt.NDArray[Any]
Kinds: TypeAlias = Sequence[TensorType]


class BodyFunction(Protocol):
    """Nested graph as a function; `results` are its shapes and dtypes."""

    def __call__(self, *arrays: Array) -> list[Array]:
        """Return the values of the graph's outputs."""

    @property
    def results(self) -> Sequence[tuple[tuple[int, ...], DType]]:
        """Shape and dtype of each output."""


def _through_bodies(*_: Any, **__: Any) -> NoReturn:
    raise CompilerBug("control flow is differentiated through its bodies")


def _require_inputs(graph: Graph, types: Kinds) -> None:
    """Raise unless the inputs of `graph` have these types."""
    own = [t.type for t in graph.inputs]
    if len(own) != len(types):
        raise ShapeError(f"a body of {len(types)} inputs, got {len(own)}")
    for wanted, found in zip(types, own, strict=True):
        _require_same(found, wanted)


def _require_same(found: TensorType, wanted: TensorType) -> None:
    if found.shape != wanted.shape:
        raise ShapeError(f"a body of fitting shapes, got {found} for {wanted}")
    if found.dtype != wanted.dtype:
        raise DTypeError(f"a body of fitting dtypes, got {found} for {wanted}")


def _defined(
    name: str,
    code: Control,
    types: Callable[..., Sequence[TensorType]],
    numpy: Callable[..., tuple[Array, ...]],
) -> Op:
    """Define a control op whose result types `types` infers from the operands'."""

    def shapes(*operands: TensorType, **attrs: Any) -> tuple[Shape, ...]:
        return tuple(t.shape for t in types(*operands, **attrs))

    def dtypes(*operands: TensorType, **attrs: Any) -> tuple[DType, ...]:
        return tuple(t.dtype for t in types(*operands, **attrs))

    return define(
        name,
        shape=shapes,
        dtype=dtypes,
        vjp=_through_bodies,
        code=code,
        numpy=numpy,
        samples=list,
        bad=list,
        outputs=VARIABLE,
    )


def _switch_types(
    index: TensorType, *operands: TensorType, graphs: Sequence[Graph]
) -> list[TensorType]:
    _require_same(index, TensorType((), INT64))
    first = [t.type for t in graphs[0].outputs]
    for graph in graphs:
        _require_inputs(graph, operands)
        if len(graph.outputs) != len(first):
            raise ShapeError("branches with equally many results")
        for tensor, wanted in zip(graph.outputs, first, strict=True):
            _require_same(tensor.type, wanted)
    return first


def _switch(
    index: Array, *operands: Array, graphs: Sequence[BodyFunction]
) -> tuple[Array, ...]:
    return tuple(graphs[int(index)](*operands))


SWITCH = _defined("switch", Control("branch"), _switch_types, _switch)


def _scan_types(
    *types: TensorType, length: Dim, reverse: bool, carries: int, sequences: int,
    graphs: Sequence[Graph], checkpoints: int = 0,
) -> list[TensorType]:  # fmt: skip
    (body,) = graphs
    state, rest = types[:carries], types[carries:]
    along, captures = rest[:sequences], rest[sequences:]
    for kind in along:
        if kind.shape[:1] != (length,):
            raise ShapeError(f"sequences of length {length}, got {kind}")
    slices = [TensorType(t.shape[1:], t.dtype) for t in along]
    _require_inputs(body, [TensorType((), INT64), *state, *slices, *captures])
    found = [t.type for t in body.outputs]
    if len(found) < carries:
        raise ShapeError(f"a body of at least {carries} results, got {len(found)}")
    for new, old in zip(found, state, strict=False):
        _require_same(new, old)
    stacked = [TensorType((length, *t.shape), t.dtype) for t in found[carries:]]
    return [*state, *stacked]


def _scan(
    *arrays: Array, length: int, reverse: bool, carries: int, sequences: int,
    graphs: Sequence[BodyFunction], checkpoints: int = 0,
) -> tuple[Array, ...]:  # fmt: skip
    (body,) = graphs
    state, rest = list(arrays[:carries]), arrays[carries:]
    along, captures = rest[:sequences], rest[sequences:]
    if length <= 0:
        empty = [
            np.zeros((0, *shape), dtype) for shape, dtype in body.results[carries:]
        ]
        return (*state, *empty)
    stacked: list[list[Array]] = []
    order = range(length - 1, -1, -1) if reverse else range(length)
    for position in order:
        slices = [x[position] for x in along]
        results = body(np.asarray(position, np.int64), *state, *slices, *captures)
        state = results[:carries]
        stacked.append(results[carries:])
    if reverse:
        stacked.reverse()
    columns = [np.stack(column) for column in zip(*stacked, strict=True)]
    return (*state, *columns)


SCAN = _defined("scan", Control("loop"), _scan_types, _scan)


def _while_types(
    *types: TensorType, carries: int, limit: int, checkpoints: int,
    graphs: Sequence[Graph], kept: Sequence[int] = (),
) -> list[TensorType]:  # fmt: skip
    condition, body = graphs
    state = list(types[:carries])
    _require_inputs(condition, types)
    _require_inputs(body, types)
    (going,) = [t.type for t in condition.outputs]
    _require_same(going, TensorType((), BOOL))
    if len(body.outputs) != carries:
        raise ShapeError(f"a body of {carries} results, got {len(body.outputs)}")
    for new, old in zip(body.outputs, state, strict=True):
        _require_same(new.type, old)
    found = [*state, TensorType((), INT64)]
    return [*found, *_rooms([state[n] for n in kept], checkpoints)] if kept else found


def _rooms(states: Kinds, snapshots: int) -> list[TensorType]:
    """Return the types of a loop's snapshots: which are kept, then their stacks."""
    places = TensorType((snapshot_words(snapshots),), INT64)
    return [places, *(TensorType((snapshots, *t.shape), t.dtype) for t in states)]


def _while(
    *arrays: Array, carries: int, limit: int, checkpoints: int,
    graphs: Sequence[BodyFunction],
    kept: Sequence[int] = (),
) -> tuple[Array, ...]:  # fmt: skip
    """Run a while_loop in NumPy; snapshots stay empty: `_replay` keeps all states."""
    condition, body = graphs
    state, captures = list(arrays[:carries]), arrays[carries:]
    steps = 0
    while bool(condition(*state, *captures)[0]):
        if steps == limit:
            raise LoopLimitError(limit_text("while_loop", limit), "line to be added")
        state = body(*state, *captures)
        steps += 1
    rooms = [np.zeros((checkpoints, *state[n].shape), state[n].dtype) for n in kept]
    places = [np.zeros(snapshot_words(checkpoints), np.int64)] if kept else []
    return (*state, np.asarray(steps, np.int64), *places, *rooms)


def limit_text(name: str, limit: int) -> str:
    """Return the message of a loop whose condition stays true after `limit` steps."""
    return (
        f"{name} requires its condition to become false within max_steps={limit}, got "
        "true after them; raise max_steps or look at the condition"
    )


WHILE = _defined("while_loop", Control("repeat"), _while_types, _while)


def _replay_types(
    *types: TensorType, length: Dim, carries: int, cotangents: int, sequences: int,
    snapshots: int, graphs: Sequence[Graph], noted: bool = False,
) -> list[TensorType]:  # fmt: skip
    forward, backward = graphs
    count, rest = types[0], types[1:]
    position = TensorType((), INT64)
    _require_same(count, position)
    if noted:
        rooms, rest = rest[: carries + 1], rest[carries + 1 :]
        wanted = _rooms(rest[:carries], snapshots)
        for found, kind in zip(rooms, wanted, strict=True):
            _require_same(found, kind)
    state, rest = rest[:carries], rest[carries:]
    pulled, rest = rest[:cotangents], rest[cotangents:]
    slices = [TensorType(t.shape[1:], t.dtype) for t in rest[:sequences]]
    if any(t.shape[:1] != (length,) for t in rest[:sequences]):
        raise ShapeError(f"sequences of length {length}")
    more = (*slices, *rest[sequences:])
    _require_inputs(forward, [position, *state, *more])
    _require_inputs(backward, [position, *state, *pulled, *more])
    results = [t.type for t in backward.outputs]
    if len(forward.outputs) != carries or len(results) < cotangents:
        raise ShapeError("bodies that give all carries")
    new = (*forward.outputs, *backward.outputs[:cotangents])
    for tensor, old in zip(new, (*state, *pulled), strict=True):
        _require_same(tensor.type, old)
    stacked = [TensorType((length, *t.shape), t.dtype) for t in results[cotangents:]]
    return [*pulled, *stacked]


def _replay(
    count: Array, *arrays: Array, length: int, carries: int, cotangents: int,
    sequences: int, snapshots: int, graphs: Sequence[BodyFunction], noted: bool = False,
) -> tuple[Array, ...]:  # fmt: skip
    """Run a reversed loop in NumPy, with all states instead of snapshots."""
    forward, backward = graphs
    arrays = arrays[carries + 1 :] if noted else arrays
    state, rest = list(arrays[:carries]), arrays[carries:]
    pulled, rest = list(rest[:cotangents]), rest[cotangents:]
    along, captures = rest[:sequences], rest[sequences:]

    def slices(position: int) -> list[Array]:
        return [x[position] for x in along]

    states = [state]
    for position in range(int(count) - 1):
        given = (*states[-1], *slices(position), *captures)
        states.append(forward(np.asarray(position), *given))
    kinds = backward.results[cotangents:]
    stacks = [np.zeros((max(length, 0), *shape), dtype) for shape, dtype in kinds]
    for position in reversed(range(int(count))):
        given = (*states[position], *pulled, *slices(position), *captures)
        results = backward(np.asarray(position), *given)
        pulled = results[:cotangents]
        for stack, row in zip(stacks, results[cotangents:], strict=True):
            stack[position] = row
    return (*pulled, *stacks)


REPLAY = _defined("replay", Control("replay"), _replay_types, _replay)
