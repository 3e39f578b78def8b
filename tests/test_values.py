"""Frozen values are what the standard library's frozen dataclasses are."""

import copy
import dataclasses
import inspect
import pickle
from dataclasses import asdict, field, fields, replace

import pytest

from staticgrad.ir.values import dataclass


@dataclass(frozen=True, slots=True)
class Ours:
    """A value."""

    x: int
    names: tuple[str, ...] = ()
    more: dict[str, int] = field(default_factory=dict, compare=False)
    secret: object = field(default=None, repr=False, compare=False)

    def double(self) -> int:
        return 2 * self.x


@dataclasses.dataclass(frozen=True, slots=True)
class Theirs:
    """A value."""

    x: int
    names: tuple[str, ...] = ()
    more: dict[str, int] = field(default_factory=dict, compare=False)
    secret: object = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Named:
    """A value with a text of its own."""

    x: int

    def __repr__(self) -> str:
        return f"<{self.x}>"


@dataclass(frozen=True, slots=True)
class Nothing:
    """A value without fields."""


GIVEN = [((1,), {}), ((1, ("a",)), {}), ((2,), {"secret": 3}), ((2, (), {"k": 1}), {})]


@pytest.mark.parametrize(("args", "kwargs"), GIVEN)
def test_values_are_those_of_the_standard_library(args, kwargs):
    ours, theirs = Ours(*args, **kwargs), Theirs(*args, **kwargs)
    assert repr(ours) == repr(theirs).replace("Theirs", "Ours")
    assert asdict(ours) == asdict(theirs)
    assert [f.name for f in fields(ours)] == [f.name for f in fields(theirs)]
    assert hash(ours) == hash(theirs)
    assert Ours.__match_args__ == Theirs.__match_args__
    assert not hasattr(ours, "__dict__")


def test_arguments_are_those_of_the_standard_library():
    names = list(inspect.signature(Ours).parameters)
    assert names == list(inspect.signature(Theirs).parameters)
    for args, kwargs in [((), {}), ((1, (), {}, 2, 3), {}), ((1,), {"y": 2})]:
        with pytest.raises(TypeError, match="argument"):
            Ours(*args, **kwargs)
    assert Ours(1).more is not Ours(1).more


def test_equality_is_that_of_the_compared_fields_of_one_class():
    assert Ours(1, secret=1) == Ours(1, secret=2)
    assert Ours(1) != Ours(2)
    assert Ours(1) != Theirs(1)
    assert Ours(1) != 1
    assert Nothing() == Nothing()
    assert len({Ours(1), Ours(1, secret=2), Ours(2), Nothing(), Nothing()}) == 3


def test_nothing_is_assigned_or_deleted():
    value = Ours(1)
    with pytest.raises(dataclasses.FrozenInstanceError, match="assign to field 'x'"):
        value.x = 2
    with pytest.raises(dataclasses.FrozenInstanceError, match="delete field 'x'"):
        del value.x
    with pytest.raises(AttributeError):
        value.y = 2
    assert value.x == 1


def test_replace_changes_fields_by_name():
    value = Ours(1, ("a",), {"k": 1}, "secret")
    found = replace(value, x=5)
    assert found == Ours(5, ("a",))
    assert found.more is value.more
    assert found.secret == "secret"


def test_methods_of_its_own_stay():
    assert repr(Named(3)) == "<3>"
    assert Ours(3).double() == 6
    assert repr(Nothing()) == "Nothing()"


def test_values_are_copied_and_pickled():
    value = Ours(1, ("a",), {"k": 1}, 2)
    for found in (
        copy.copy(value),
        copy.deepcopy(value),
        pickle.loads(pickle.dumps(value)),
    ):
        assert found == value
        assert found.more == value.more
        assert found.secret == 2


def test_only_frozen_values_with_slots_are_made():
    with pytest.raises(TypeError, match="frozen"):
        dataclass(frozen=True, slots=False)
