"""How many lines, in how many files, name an operation (places.py); public names."""

import importlib
import re

import pytest
from places import OPERATIONS, ROOT, places

import staticgrad as sg

# at most how many lines in how many files
MOST = {"xlogy": (3, 2), "cumsum": (4, 3), "tanh": (5, 3), "conv2d": (10, 8)}


@pytest.mark.parametrize("name", MOST)
def test_an_operation_is_named_in_few_places(name):
    lines, files = MOST[name]
    found = places(*OPERATIONS[name])
    assert found
    assert len(found) <= lines, found
    assert len({file for file, _ in found}) <= files, found


def test_a_name_that_is_nowhere_has_no_places():
    assert places("no_such_operation") == []


def public_modules(package):
    """The modules of a package that list names of their own in ``__all__``."""
    text = (ROOT / "staticgrad" / package / "__init__.py").read_text()
    names = re.findall(rf"^from (staticgrad\.{package}\.[\w.]+) import \*$", text, re.M)
    return [importlib.import_module(name) for name in names]


@pytest.mark.parametrize("package", [sg.ops, sg.nn])
def test_a_public_name_is_listed_by_the_module_that_defines_it(package):
    modules = public_modules(package.__name__.rpartition(".")[2])
    listed = [(name, module) for module in modules for name in module.__all__]
    names = [name for name, _ in listed]
    assert len(set(names)) == len(names)
    for name, module in listed:
        assert getattr(package, name) is getattr(module, name)
        assert getattr(module, name).__module__ == module.__name__
    others = set(package.__all__) - set(names)
    assert set(names) <= set(package.__all__)
    known = {id(getattr(module, name)) for name, module in listed}
    if package is sg.ops:  # what is not listed has two names, or is a module
        aliases = others - {"linalg", "random"}
        assert {id(getattr(package, name)) for name in aliases} <= known
        assert len(sg.__all__) == len(set(sg.__all__))
        assert set(package.__all__) <= set(sg.__all__) <= set(dir(sg))
    else:  # functions of ops
        assert all(getattr(package, name) is getattr(sg, name) for name in others)


def test_helpers_are_not_public():
    hidden = {"apply", "define", "elementary", "on_floats", "reshaped", "Tensor", "np"}
    assert not hidden & set(sg.ops.__all__)
    assert not hidden & set(sg.nn.__all__)
