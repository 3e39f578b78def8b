"""Trees go in and come back with the same structure."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from staticgrad.errors import GraphError
from staticgrad.trees import flatten, flatten_as, tree_map, unflatten

Pair = namedtuple("Pair", ["left", "right"])


@dataclass(frozen=True)
class Carry:
    h: Any
    c: Any


TREES = st.recursive(
    st.integers() | st.none(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.builds(Carry, inner, inner)
        | st.builds(Pair, inner, inner)
    ),
    max_leaves=12,
)


@given(TREES)
def test_round_trip(tree: Any) -> None:
    leaves, treedef = flatten(tree)
    assert unflatten(treedef, leaves) == tree
    assert type(unflatten(treedef, leaves)) is type(tree)
    assert len(leaves) == treedef.count == len(treedef.paths)


@given(TREES)
def test_map_keeps_the_structure(tree: Any) -> None:
    doubled = tree_map(lambda a, b: a + b, tree, tree)
    assert flatten(doubled)[0] == [2 * leaf for leaf in flatten(tree)[0]]
    assert flatten(doubled)[1] == flatten(tree)[1]


def test_leaves_come_in_the_order_written() -> None:
    assert flatten({"b": (1, [2]), "a": Carry(3, None)})[0] == [1, 2, 3]


def test_paths_name_each_leaf() -> None:
    _, treedef = flatten({"grad": [1, Carry(2, Pair(3, 4))]})
    assert treedef.paths == (
        "['grad'][0]",
        "['grad'][1].h",
        "['grad'][1].c[0]",
        "['grad'][1].c[1]",
    )


def test_a_single_leaf_has_an_empty_path() -> None:
    leaves, treedef = flatten(5)
    assert leaves == [5]
    assert treedef.paths == ("",)


def test_none_is_structure() -> None:
    leaves, treedef = flatten((None, 1))
    assert leaves == [1]
    assert unflatten(treedef, ["x"]) == (None, "x")


def test_dicts_match_by_key_whatever_their_order() -> None:
    _, treedef = flatten({"a": 0, "b": 0})
    assert flatten_as(treedef, {"b": 2, "a": 1}) == [1, 2]


@pytest.mark.parametrize(
    ("left", "right", "match"),
    [
        ((1, 2), [1, 2], "got tuple and list at the root"),
        ({"a": (1,)}, {"a": {"b": 1}}, r"tuple and dict at \['a'\]"),
        ((1, 2), (1, 2, 3), r"the keys \[0, 1\] and \[0, 1, 2\]"),
        ({"a": 1}, {"b": 1}, r"the keys \['a'\] and \['b'\]"),
        ((None,), (1,), "got none and leaf"),
    ],
)
def test_another_structure_is_refused(left: Any, right: Any, match: str) -> None:
    with pytest.raises(GraphError, match=match):
        tree_map(lambda a, b: a, left, right)


def test_a_wrong_number_of_leaves_is_refused() -> None:
    with pytest.raises(GraphError, match="requires 2 leaves, got 1"):
        unflatten(flatten([1, 2])[1], [1])
