"""Loop collapsing: neighbouring loops that walk memory as one are merged.

Axes a and b, with b directly inside of a, collapse if every access steps along a by as
much as b's whole extent: ``stride[a] == stride[b] * size[b]``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from staticgrad.compiler.kernel_ir.kernels import (
    Access,
    Blocks,
    Compute,
    Index,
    Load,
    Loop,
    Number,
    Rest,
    Statement,
    Store,
    When,
    at,
)
from staticgrad.ir.size import Dim

Strides = tuple[Dim, ...]
Body = tuple[Statement, ...]

_NESTED = (Loop, Rest, Blocks, When)
"""A tuple: isinstance would rebuild a union in each of thousands of tests."""

_NUMBERED = ("result", "value", "register", "position", "condition")
"""Fields of statements that are values or registers; the value of a Number is none."""


def statements_of(body: Sequence[Statement]) -> Iterator[Statement]:
    """Yield every statement, those inside of loops included."""
    stack = list(reversed(body))
    while stack:
        statement = stack.pop()
        yield statement
        if isinstance(statement, _NESTED):
            stack.extend(reversed(statement.body))


def with_axes(
    body: Sequence[Statement],
) -> Iterator[tuple[Statement, tuple[int, ...]]]:
    """Every statement, with the axes of the loops around it, outermost first."""
    stack: list[tuple[Statement, tuple[int, ...]]] = [(s, ()) for s in reversed(body)]
    while stack:
        statement, axes = stack.pop()
        yield statement, axes
        if isinstance(statement, _NESTED):
            if isinstance(statement, Loop):
                axes = (*axes, statement.axis)
            stack.extend((s, axes) for s in reversed(statement.body))


def loops_of(body: Sequence[Statement]) -> list[Loop]:
    """Return the loops of `body`, nested ones included."""
    return [s for s in statements_of(body) if isinstance(s, Loop)]


def is_flat(body: Sequence[Statement]) -> bool:
    """Whether no statement of `body` has a body, as in innermost loops."""
    return not any(isinstance(statement, _NESTED) for statement in body)


def loops(axes: Sequence[int], body: Body) -> Body:
    """Nest `body` in one loop per axis, the first axis outermost."""
    for axis in reversed(axes):
        body = (Loop(axis, body),)
    return body


def each_statement(body: Body, change: Callable[[Statement], Statement]) -> Body:
    """Return `body` with `change` applied to every statement, inner ones first."""
    result: list[Statement] = []
    for statement in body:
        if isinstance(statement, _NESTED):
            inner = each_statement(statement.body, change)
            if inner is not statement.body:
                statement = replace(statement, body=inner)
        result.append(change(statement))
    is_same = all(new is old for new, old in zip(result, body, strict=True))
    return body if is_same else tuple(result)


def with_values(body: Body, number: Callable[[int], int]) -> Body:
    """Return `body` with values and registers renumbered."""

    def access(place: Access) -> Access:
        if place.dynamic is None:
            return place
        return replace(place, dynamic=(number(place.dynamic[0]), place.dynamic[1]))

    def change(statement: Statement) -> Statement:
        names = (f for f in _NUMBERED if hasattr(statement, f))
        fields: dict[str, Any] = {f: number(getattr(statement, f)) for f in names}
        match statement:
            case Number(value=value):
                fields["value"] = value
            case Compute(args=args):
                fields["args"] = tuple(map(number, args))
            case Load(access=place) | Store(access=place):
                fields["access"] = access(place)
        return replace(statement, **fields) if fields else statement

    return each_statement(body, change)


def with_strides(body: Body, change: Callable[[Strides], Strides]) -> Body:
    """`body` with `change` applied to the strides of every access and index."""

    def changed(statement: Statement) -> Statement:
        if isinstance(statement, Index):
            return replace(statement, strides=change(statement.strides))
        if isinstance(statement, Load | Store):
            a = statement.access
            return at(
                statement, Access(a.operand, change(a.strides), a.offset, a.dynamic)
            )
        return statement

    return each_statement(body, changed)


def arranged(
    axes: Sequence[Dim], order: Sequence[int], body: Body
) -> tuple[tuple[Dim, ...], Body]:
    """Return axes and body with axes renumbered in `order`."""
    if list(order) == list(range(len(axes))):
        return tuple(axes), body
    place = {axis: number for number, axis in enumerate(order)}
    body = with_strides(body, lambda strides: tuple(strides[axis] for axis in order))
    return tuple(axes[axis] for axis in order), _renumbered(body, place)


def _renumbered(body: Body, place: dict[int, int]) -> Body:
    def changed(statement: Statement) -> Statement:
        if isinstance(statement, Loop):
            return replace(statement, axis=place[statement.axis])
        return statement

    return each_statement(body, changed)


def collapse(
    axes: tuple[Dim, ...], body: Body, outer: int
) -> tuple[tuple[Dim, ...], Body, int]:
    """Collapse loops; also return by how many the first `outer` axes decreased.

    Axes on different sides of `outer` stay apart.
    """
    joined = 0
    axis = len(axes) - 2
    while axis >= 0:
        if axis + 1 != outer and _can_join(axis, axes, body):
            axes, body = _join(axis, axes, body)
            joined += axis + 1 < outer
            outer -= axis + 1 < outer
        axis -= 1
    return axes, body, joined


def _can_join(axis: int, axes: tuple[Dim, ...], body: Body) -> bool:
    pairs = 0
    for statement in statements_of(body):
        if isinstance(statement, Loop) and statement.axis == axis:
            only = statement.body[0]
            alone = len(statement.body) == 1
            if not (alone and isinstance(only, Loop) and only.axis == axis + 1):
                return False
            pairs += 1
        if isinstance(statement, Loop) and statement.axis == axis + 1:
            pairs -= 1
        strides = _strides(statement)
        if strides and strides[axis] != strides[axis + 1] * axes[axis + 1]:
            return False
    return pairs == 0


def _strides(statement: Statement) -> Strides:
    if isinstance(statement, Index):
        return statement.strides
    if isinstance(statement, Load | Store):
        return statement.access.strides
    return ()


def _join(axis: int, axes: tuple[Dim, ...], body: Body) -> tuple[tuple[Dim, ...], Body]:
    size = axes[axis] * axes[axis + 1]
    axes = (*axes[:axis], size, *axes[axis + 2 :])
    body = with_strides(body, lambda strides: (*strides[:axis], *strides[axis + 1 :]))
    return axes, _without(axis + 1, body)


def _without(axis: int, body: Body) -> Body:
    """Replace loops over `axis` by their bodies; later axes move up by one."""
    result: list[Statement] = []
    for statement in body:
        if isinstance(statement, When):
            result.append(When(statement.condition, _without(axis, statement.body)))
        elif not isinstance(statement, Loop):
            result.append(statement)
        elif statement.axis == axis:
            result.extend(_without(axis, statement.body))
        else:
            number = statement.axis - (statement.axis > axis)
            inner = _without(axis, statement.body)
            result.append(replace(statement, axis=number, body=inner))
    return tuple(result)
