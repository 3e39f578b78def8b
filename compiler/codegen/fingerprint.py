"""Fingerprint of a function: a digest of all that its machine code depends on.

Its bytecode and constants, defaults, what its closure and the global names in it hold,
and the same of every function among those. Line numbers and names of files are not part
of it, so a function that has only moved has the same digest. What cannot be looked into
makes a digest that no other process has: the kernel is then compiled anew in each.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
import uuid
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
from numba.extending import is_jitted

_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic, np.dtype)
_PROCESS = uuid.uuid4().hex


def fingerprint(*values: Any) -> str:
    """Return the digest of functions, and of the values that they are given.

    >>> fingerprint(lambda x: x + 1) == fingerprint(lambda x: x + 1)
    True
    >>> fingerprint(lambda x: x + 1) == fingerprint(lambda x: x + 2)
    False
    """
    total = hashlib.sha256(sys.version.encode())
    seen: dict[int, int] = {}
    left = list(reversed(values))
    while left:
        value = left.pop()
        if id(value) in seen and not isinstance(value, _PLAIN):
            total.update(f"\0again {seen[id(value)]}".encode())
            continue
        seen[id(value)] = len(seen)
        text, parts = _opened(value)
        total.update(b"\0" + text)
        left += reversed(parts)
    return total.hexdigest()


def _opened(value: Any) -> tuple[bytes, list[Any]]:
    """Return the bytes that identify a value itself, and the values nested in it."""
    if is_jitted(value):
        options = sorted((k, str(v)) for k, v in value.targetoptions.items())
        return f"jitted {options}".encode(), [value.py_func]
    if isinstance(value, FunctionType):
        return b"function", [value.__code__, value.__defaults__, *_free(value)]
    if isinstance(value, CodeType):
        known = (value.co_argcount, value.co_flags, value.co_names, value.co_varnames)
        return f"code {known}".encode() + value.co_code, [*value.co_consts]
    if isinstance(value, _PLAIN):
        return f"{type(value).__name__} {value!r}".encode(), []
    if isinstance(value, np.ndarray):
        return f"array {value.dtype}{value.shape}".encode() + value.tobytes(), []
    if isinstance(value, tuple | list | frozenset):
        parts = sorted(value, key=repr) if isinstance(value, frozenset) else value
        return f"{type(value).__name__} {len(parts)}".encode(), list(parts)
    if isinstance(value, dict):
        return f"dict {len(value)}".encode(), [x for p in value.items() for x in p]
    if isinstance(value, ModuleType):
        version = getattr(value, "__version__", "")
        return f"module {value.__name__} {version}".encode(), []
    return _named(value), []


def _free(function: FunctionType) -> Iterator[Any]:
    """Yield names and values of a function's free variables and globals."""
    try:
        found = inspect.getclosurevars(function)
    except ValueError:  # a cell that is still empty
        yield _PROCESS
        return
    for names in (found.nonlocals, found.globals):
        for name in sorted(names):
            yield name
            yield names[name]
    inner = (c for c in function.__code__.co_consts if isinstance(c, CodeType))
    for name in sorted({name for code in inner for name in code.co_names}):
        if name in function.__globals__:
            yield name
            yield function.__globals__[name]


def _named(value: Any) -> bytes:
    """Identify a class or built-in by name; anything else is unique to this process."""
    module = getattr(value, "__module__", None)
    name = getattr(value, "__qualname__", None)
    if module and name and callable(value):
        return f"named {module}.{name}".encode()
    return f"unknown {_PROCESS} {id(value)}".encode()
