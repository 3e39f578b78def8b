"""The errors that staticgrad raises.

Every message has one form: ``<op> requires <rule>, got <types>; <what to do>
at trainer.py:41``. Each class derives from the built-in exception that a user of NumPy
would expect, so ``except ValueError`` keeps working.
"""

import numpy as np


class ShapeError(ValueError):
    """Shapes that do not fit the rule of an operation."""


class DTypeError(TypeError):
    """Data types that do not fit the rule of an operation."""


class GraphError(ValueError):
    """A graph, or a call of its executable, that is not well formed."""


class MemoryBudgetError(MemoryError):
    """A memory budget below the least that can be reached."""


class IndexOutOfRange(IndexError):
    """An index or label outside its axis, found while running."""


class NonFiniteError(FloatingPointError):
    """A NaN or an infinity where finite values were asked for."""


class LoopLimitError(RuntimeError):
    """A loop that passed its ``max_steps``."""


class FactorisationError(np.linalg.LinAlgError):
    """A matrix that cannot be factorised."""


class HookWarning(UserWarning):
    """A hook or tap that does not do what it seems to."""


class DeviceError(RuntimeError):
    """A GPU that is missing, too old, out of memory, or that has failed."""


class CompilerBug(RuntimeError):
    """A broken invariant inside staticgrad; please report it."""
