"""Errors and warnings of staticgrad.

Every message has one form: ``<op> requires <rule>, got <types>; <what to do>
at trainer.py:41``. Each class derives from the built-in exception that a user of NumPy
would expect, so ``except ValueError`` keeps working.
"""

import numpy as np


class ShapeError(ValueError):
    """Shapes that violate the rule of an operation."""


class DTypeError(TypeError):
    """Data types that violate the rule of an operation."""


class GraphError(ValueError):
    """Graph, or call of its executable, that is not well formed."""


class MemoryBudgetError(MemoryError):
    """Memory budget below the attainable minimum."""


class IndexOutOfRange(IndexError):
    """Index or label outside its axis, detected at run time."""


class NonFiniteError(FloatingPointError):
    """NaN or infinity where finite values are required."""


class LoopLimitError(RuntimeError):
    """Loop that exceeded its ``max_steps``."""


class FactorisationError(np.linalg.LinAlgError):
    """Matrix that cannot be factorised."""


class HookWarning(UserWarning):
    """Hook or tap without the effect it seems to have."""


class DeviceError(RuntimeError):
    """GPU that is missing, too old, out of memory, or that failed."""


class CompilerBug(RuntimeError):
    """Broken invariant inside staticgrad; please report it."""
