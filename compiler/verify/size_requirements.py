"""Requirements of a graph on its symbolic sizes, checked at each new set of sizes.

``x[1:]`` of an axis ``n`` has the size ``n - 1``, which is no size where n is 0; a
maximum over ``n`` needs an element; ``x.reshape(-1, 3)`` an n that is a multiple of 3.
The rules of such nodes are run once more with
numbers in place of symbols, for each new set of sizes, before anything is planned. So
a call gets the error that a graph of static sizes would get when it is built.

Only nodes whose rule can fail are kept: those with a dimension that has a negative
term or a division, those whose rule fails where every symbol is 0, and those with a
symbolic attribute, such as the length of a window or slice, whose rule fails where
sizes differ widely, in one order or the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from staticgrad.errors import ShapeError
from staticgrad.ir.graph import infer, located, with_nested
from staticgrad.ir.node import Node
from staticgrad.ir.op import Control, Elementwise, Leaf
from staticgrad.ir.size import Size, evaluate, has_division
from staticgrad.ir.source import at, called
from staticgrad.ir.types import TensorType

_LARGER = "pass larger arrays"


def requiring(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Return those of `nodes`, nested ones included, with requirements on sizes."""
    found = [n for n in with_nested(nodes) if _is_looked_at(n) and _may_fail(n)]
    return tuple(sorted(found, key=lambda n: n.number))  # a derivative's come last


def accept(_: Mapping[str, int]) -> None:
    """Accept all sizes."""


def require(nodes: Sequence[Node], values: Mapping[str, int]) -> None:
    """Raise ShapeError, with the user's line, where `values` violate a rule."""
    for node in nodes:
        types, attrs = _numbers(node, values)
        try:
            results = infer(node.op, types, attrs, node.graphs)
        except ShapeError as error:
            rule, *advice = error.args or ("shapes that fit",)
            text = f"{(_LARGER, *advice)[-1]}, {_given(node, values)}"
            given = ShapeError(rule, text)
            name = called(node.source, node.op.name)
            raise located(given, name, types, node.source) from None
        for built, result in zip(node.types, results, strict=True):
            _require_sizes(node, built, result, values)


def suit(nodes: Sequence[Node], size_of: Callable[[str], int]) -> bool:
    """Whether the sizes that `size_of` gives to symbols suit all of `nodes`."""
    names = _names([dim for node in nodes for dim in _dims(node)])
    try:
        require(nodes, {name: size_of(name) for name in names})
    except ShapeError:
        return False
    return True


def _is_looked_at(node: Node) -> bool:
    plain = isinstance(node.op.code, Control | Leaf | Elementwise)
    return not plain and bool(_dims(node))


def _dims(node: Node) -> list[Size]:
    """Return the symbolic dimensions in the node's types and attributes."""
    found: list[Any] = [d for t in node.types for d in t.shape]
    found += [d for t in node.inputs for d in t.shape]
    found += _parts(node.attrs.values())
    return [dim for dim in found if isinstance(dim, Size)]


def _parts(values: Iterable[Any]) -> list[Any]:
    """Return `values`, with those inside of tuples."""
    found: list[Any] = []
    for value in values:
        found += value if isinstance(value, tuple) else [value]
    return found


def _may_fail(node: Node) -> bool:
    dims = _dims(node)
    if any(has_division(d) or any(count < 0 for _, count in d.terms) for d in dims):
        return True
    probes = [dict.fromkeys(_names(dims), 0)]
    if any(isinstance(value, Size) for value in _parts(node.attrs.values())):
        names = sorted(_names(dims))
        powers = [10 ** (6 + n) for n in range(len(names))]
        probes += [
            dict(zip(names, found, strict=True)) for found in (powers, powers[::-1])
        ]
    return not all(suit([node], probe.__getitem__) for probe in probes)


def _names(dims: Sequence[Size]) -> frozenset[str]:
    return frozenset().union(*(dim.symbols() for dim in dims))


def _numbers(
    node: Node, values: Mapping[str, int]
) -> tuple[tuple[TensorType, ...], dict[str, Any]]:
    """Return the types of a node's inputs, and its attributes, for `values`."""
    try:
        types = tuple(_static(t.type, values) for t in node.inputs)
        return types, {name: _bound(v, values) for name, v in node.attrs.items()}
    except ZeroDivisionError:
        raise ShapeError(
            f"{node.op.name} requires sizes that are not divided by 0, got "
            f"{node.types[0]}; {_LARGER}, {_given(node, values)}{at(node.source)}"
        ) from None


def _static(type_: TensorType, values: Mapping[str, int]) -> TensorType:
    shape = tuple(evaluate(dim, values) for dim in type_.shape)
    return TensorType(shape, type_.dtype, type_.weak)


def _bound(value: Any, values: Mapping[str, int]) -> Any:
    if isinstance(value, Size):
        return evaluate(value, values)
    if isinstance(value, tuple):
        return tuple(_bound(part, values) for part in value)
    return value


def _require_sizes(
    node: Node, built: TensorType, result: TensorType, values: Mapping[str, int]
) -> None:
    if any(isinstance(size, int) and size < 0 for size in result.shape):
        raise ShapeError(
            f"{node.op.name} requires sizes >= 0, got {built}; "
            f"{_LARGER}, {_given(node, values)}{at(node.source)}"
        )


def _given(node: Node, values: Mapping[str, int]) -> str:
    names = sorted(_names(_dims(node)))
    return "here " + ", ".join(f"{name} = {values[name]}" for name in names)
