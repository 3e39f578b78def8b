"""Peers that are measured in this process, on one thread; each imported when asked for.

Cores have to be pinned before: a library starts as many threads as it then sees.
"""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import numpy as np


def torch() -> ModuleType | None:
    """PyTorch with one thread, if it is installed."""
    found = _module("torch")
    if found is not None:
        found.set_num_threads(1)
    return found


def jax() -> ModuleType | None:
    """JAX, if it is installed."""
    return _module("jax")


def jitted(jax: ModuleType, function: Callable, *arrays: np.ndarray) -> Callable:
    """A call of the compiled function, with arrays that are there, until it is done."""
    compiled, given = jax.jit(function), [jax.device_put(a) for a in arrays]
    return lambda: compiled(*given).block_until_ready()


def _module(name: str) -> ModuleType | None:
    return None if find_spec(name) is None else import_module(name)
