"""Trees: nested tuples, lists, dicts, dataclasses and None; all else is a leaf.

``flatten`` takes a tree apart into its leaves, in order, and a TreeDef that remembers
the structure; ``unflatten`` puts leaves back into it. Dicts keep the order in which
they were written. None is structure, not a leaf, so it comes back as None.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from staticgrad.errors import GraphError

Kind: TypeAlias = Literal["leaf", "none", "tuple", "list", "dict", "dataclass"]


@dataclass(frozen=True, slots=True)
class TreeDef:
    """Structure of a tree without its leaves.

    `cls` is the class that is made anew; `keys` are dict keys or field names.
    """

    kind: Kind
    cls: type | None = None
    keys: tuple[Any, ...] = ()
    children: tuple[TreeDef, ...] = ()

    @property
    def count(self) -> int:
        """Number of leaves."""
        if self.kind == "leaf":
            return 1
        return sum(child.count for child in self.children)

    @property
    def paths(self) -> tuple[str, ...]:
        """Path to each leaf from the root, such as ``['grad'][0].weight``."""
        return tuple(_paths(self, ""))


LEAF = TreeDef("leaf")
_NONE = TreeDef("none")


def flatten(tree: Any) -> tuple[list[Any], TreeDef]:
    """Return the leaves of `tree` in order, and its structure.

    >>> leaves, treedef = flatten({"a": (1, None), "b": [2]})
    >>> leaves
    [1, 2]
    >>> unflatten(treedef, ["x", "y"])
    {'a': ('x', None), 'b': ['y']}
    """
    leaves: list[Any] = []
    return leaves, _take_apart(tree, leaves)


def unflatten(treedef: TreeDef, leaves: Sequence[Any]) -> Any:
    """Return the tree of structure `treedef` that holds `leaves`, in order.

    Raises GraphError where the number of leaves differs.
    """
    if len(leaves) != treedef.count:
        raise GraphError(
            f"unflatten requires {treedef.count} leaves, got {len(leaves)}"
        )
    return _put_together(treedef, iter(leaves))


def tree_map(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Return `tree` with every leaf replaced by ``function(leaf, *leaves of others)``.

    Raises GraphError where the structure of another tree differs.

    >>> tree_map(lambda a, b: a + b, {"x": 1, "y": 2}, {"x": 10, "y": 20})
    {'x': 11, 'y': 22}
    """
    leaves, treedef = flatten(tree)
    columns = [leaves, *(flatten_as(treedef, other) for other in others)]
    return unflatten(treedef, [function(*row) for row in zip(*columns, strict=True)])


def flatten_as(treedef: TreeDef, tree: Any) -> list[Any]:
    """Return the leaves of `tree` in the order of `treedef`, whatever that of dicts.

    Raises GraphError, naming the place, where the structure differs.
    """
    leaves: list[Any] = []
    _match(treedef, tree, "", leaves)
    return leaves


def _take_apart(tree: Any, leaves: list[Any]) -> TreeDef:
    kind = _kind(tree)
    if kind == "leaf":
        leaves.append(tree)
        return LEAF
    if kind == "none":
        return _NONE
    keys, parts = _parts(kind, tree)
    children = tuple(_take_apart(part, leaves) for part in parts)
    return TreeDef(kind, type(tree), keys, children)


def _kind(tree: Any) -> Kind:
    if tree is None:
        return "none"
    if isinstance(tree, tuple):
        return "tuple"
    if isinstance(tree, list):
        return "list"
    if isinstance(tree, Mapping):
        return "dict"
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        return "dataclass"
    return "leaf"


def _parts(kind: Kind, tree: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    if kind == "dict":
        return tuple(tree.keys()), tuple(tree.values())
    if kind == "dataclass":
        names = tuple(field.name for field in dataclasses.fields(tree))
        return names, tuple(getattr(tree, name) for name in names)
    return tuple(range(len(tree))), tuple(tree)


def _put_together(treedef: TreeDef, leaves: Iterator[Any]) -> Any:
    if treedef.kind == "leaf":
        return next(leaves)
    if treedef.kind == "none":
        return None
    parts = [_put_together(child, leaves) for child in treedef.children]
    return _container(treedef, parts)


def _container(treedef: TreeDef, parts: list[Any]) -> Any:
    cls = treedef.cls
    if treedef.kind == "list":
        return parts
    if treedef.kind == "dict":
        return dict(zip(treedef.keys, parts, strict=True))
    if treedef.kind == "dataclass":
        return _instance(cls, treedef.keys, parts)
    if hasattr(cls, "_make"):  # a namedtuple takes its fields one by one
        return cls._make(parts)  # type: ignore[union-attr]
    return tuple(parts)


def _instance(cls: Any, names: tuple[str, ...], parts: list[Any]) -> Any:
    # __init__ is not run: it may refuse what is not a Tensor, or derive fields anew
    made = object.__new__(cls)
    for name, part in zip(names, parts, strict=True):
        object.__setattr__(made, name, part)
    return made


def _paths(treedef: TreeDef, prefix: str) -> Iterator[str]:
    if treedef.kind == "leaf":
        yield prefix
    for key, child in zip(treedef.keys, treedef.children, strict=True):
        yield from _paths(child, prefix + _step(treedef.kind, key))


def _step(kind: Kind, key: Any) -> str:
    return f".{key}" if kind == "dataclass" else f"[{key!r}]"


def _match(treedef: TreeDef, tree: Any, place: str, leaves: list[Any]) -> None:
    if treedef.kind == "leaf":
        leaves.append(tree)
        return
    kind = _kind(tree)
    if kind != treedef.kind:
        raise GraphError(
            f"trees require one structure, got {treedef.kind} and {kind}"
            f" at {place or 'the root'}"
        )
    if kind == "none":
        return
    keys, parts = _parts(kind, tree)
    found = dict(zip(keys, parts, strict=True))
    if len(keys) != len(treedef.keys) or any(k not in found for k in treedef.keys):
        raise GraphError(
            f"trees require one structure, got the keys {list(treedef.keys)} and"
            f" {list(keys)} at {place or 'the root'}"
        )
    for key, child in zip(treedef.keys, treedef.children, strict=True):
        _match(child, found[key], place + _step(kind, key), leaves)
