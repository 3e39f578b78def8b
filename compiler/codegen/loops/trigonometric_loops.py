"""Loops over sin, cos or tan: fast for near arguments, exact for far ones.

The fast functions are sound up to a limit (vector_trigonometry.py). Testing each
argument would keep a loop from vectorising, so an innermost loop runs in blocks: first
a small loop over the block that computes the arguments alone and keeps the largest of
their bit patterns, an integer maximum, which vectorises; then the body, with sin, cos
and tan where that maximum is near, and with sin_any and the like, which test each
argument, where it is not. Arguments known to be near (magnitudes.py) are not tested.

Where arguments cannot be computed ahead (they depend on what the loop itself has
written), and outside of innermost loops, sin_any and the like are used throughout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache

from staticgrad.compiler.codegen.language import type_name
from staticgrad.compiler.codegen.loops.magnitudes import bound, magnitudes
from staticgrad.compiler.codegen.math.vector_trigonometry import FAR_F32, FAR_F64
from staticgrad.compiler.kernel_ir.kernels import (
    Accumulate,
    CheckIndex,
    Compute,
    Invoke,
    Load,
    LoopKernel,
    Statement,
    Store,
    result_of,
)
from staticgrad.compiler.kernel_ir.walks import is_flat, statements_of
from staticgrad.ir.expression import Apply, Expr, walk

GUARDED = ("sin", "cos", "tan")

NEAR = {"float32": 2.0**16, "float64": 2.0**40}
"""Arguments of sin and cos that are known to be within this need no guard."""

FAR = {"float32": ("int32", FAR_F32), "float64": ("int64", FAR_F64)}
"""Least bits of a far argument, and the type of the bits."""


def uses_guarded(statement: Statement) -> bool:
    """True for a Compute that calls sin, cos or tan."""
    return isinstance(statement, Compute) and bool(guarded_arguments(statement.expr))


def near_statements(kernel: LoopKernel) -> frozenset[int]:
    """Return the results of sin and cos whose arguments are known to be near."""
    calls = [s for s in statements_of(kernel.body) if uses_guarded(s)]
    if not calls:
        return frozenset()
    found = magnitudes(kernel.body)
    return frozenset(
        s.result
        for s in calls
        if isinstance(s, Compute)
        and _largest_argument(s, found) <= NEAR[type_name(s.dtype)]
    )


def _largest_argument(statement: Compute, found: Mapping[int, float]) -> float:
    bounds = (bound(x, statement, found) for x in guarded_arguments(statement.expr))
    return max(bounds, default=0.0)


def any_argument(expr: Expr) -> Expr:
    """An expression with the functions that are right everywhere.

    >>> from staticgrad.ir.expression import parse
    >>> any_argument(parse("sin({0})"))
    Apply(name='sin_any', args=(Arg(place=0),))
    """
    if not isinstance(expr, Apply):
        return expr
    name = f"{expr.name}_any" if expr.name in GUARDED else expr.name
    return Apply(name, tuple(map(any_argument, expr.args)))


@cache
def guarded_arguments(expr: Expr) -> tuple[Expr, ...]:
    """The arguments that sin, cos and tan have in an expression, inner ones too.

    >>> from staticgrad.ir.expression import parse
    >>> guarded_arguments(parse("tan({0}) * sin(cos({1}))")) == tuple(
    ...     parse(text) for text in ("{0}", "cos({1})", "{1}")
    ... )
    True
    """
    calls = (part for part in walk(expr) if isinstance(part, Apply))
    return tuple(call.args[0] for call in calls if call.name in GUARDED)


def arguments_ahead(
    body: Sequence[Statement], guarded: Callable[[Statement], bool]
) -> tuple[Statement, ...] | None:
    """Return the statements of `body` that the arguments of `guarded` ones need.

    None if they cannot be run ahead of the body: they read what it writes.
    """
    if not is_flat(body):
        return None
    wanted: set[int] = set()
    kept: list[Statement] = []
    for statement in reversed(body):
        needed = guarded(statement) or result_of(statement) in wanted
        if needed and not isinstance(statement, Accumulate):
            wanted.update(arguments(statement))
            kept.append(statement)
    kept.reverse()
    return None if _reads_written(body, kept, wanted) else tuple(kept)


def _reads_written(
    body: Sequence[Statement], ahead: Sequence[Statement], wanted: set[int]
) -> bool:
    """Whether `ahead` needs a register of the loop, or memory that the loop changes.

    An element that an iteration loads before it stores it is still as it was.
    """
    registers = {s.register for s in body if isinstance(s, Accumulate)}
    stores = [(place, s.access) for place, s in enumerate(body) if isinstance(s, Store)]
    loads = [
        (place, s.access)
        for place, s in enumerate(body)
        if isinstance(s, Load) and s in ahead
    ]
    changed = any(
        stored.operand == loaded.operand and (stored != loaded or before < place)
        for before, stored in stores
        for place, loaded in loads
    )
    return changed or bool(registers & wanted)


def arguments(statement: Statement) -> tuple[int, ...]:
    """Return the values that a statement computes from; stores aside."""
    if isinstance(statement, Compute):
        return statement.args
    if isinstance(statement, CheckIndex):
        return statement.value, statement.position
    if isinstance(statement, Invoke):
        return statement.position, max(statement.target, statement.position)
    if isinstance(statement, Load) and statement.access.dynamic is not None:
        return (statement.access.dynamic[0],)
    return ()
