"""Taps: observation of a tensor of an executable while it runs.

A tap hands each value to a Python function, or keeps the last values in a ring buffer,
which native code writes. The executable is compiled anew with it, and goes back to the
program that it had when the last tap is removed. A tap lives until it is removed,
whether its handle is kept or not.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from staticgrad.errors import GraphError, HookWarning
from staticgrad.ir.graph import topological
from staticgrad.ir.node import Input, State, Tensor
from staticgrad.ir.source import Source, at, here

Array = npt.NDArray[Any]
Callback = Callable[[Array], Any]

_OPEN: ContextVar[list[Tap] | None] = ContextVar("open taps", default=None)


@dataclass(frozen=True, slots=True)
class Ring:
    """Ring buffer of a tensor: value number n is ``values[n % len(values)]``."""

    values: State
    count: State


@dataclass(frozen=True, slots=True)
class Tapping:
    """Functions of an executable that taps need.

    ``make(taps)`` gives the target with them; ``is_shared(tensor)`` says whether the
    executable computes a tensor anyway, ``is_inside(tensor)`` whether in the body of a
    branch or loop; ``ring(tensor, n)`` is a ring buffer for it.
    """

    make: Callable[[Sequence[Tap]], Any]
    is_shared: Callable[[Tensor], bool]
    is_inside: Callable[[Tensor], bool]
    ring: Callable[[Tensor, Any], Ring]


class Tap:
    """Tap of a tensor, with its handle.

    `tensor` is the tapped tensor. Of a ring buffer `values` are the last values, the
    oldest first, as a fresh array with a leading axis; `count` is the number seen.
    """

    def __init__(
        self,
        tensor: Tensor,
        callback: Callback | None,
        ring: Ring | None,
        drop: Callable[[Tap], None],
        source: Source | None,
    ) -> None:
        self.tensor = tensor
        self.callback = callback
        self.ring = ring
        self.source = source
        self.active = True
        self._drop = drop
        self._calls = 0
        opened = _OPEN.get()
        if opened is not None:
            opened.append(self)

    def __repr__(self) -> str:
        state = "active" if self.active else "removed"
        return f"Tap({self.tensor.type}, {state}{at(self.source)})"

    def looks_at(self, tensor: Tensor, callback: Any, record: Any) -> bool:
        """Whether another tap with these arguments would be the same."""
        length = None if self.ring is None else self.ring.values.shape[0]
        same = self.callback == callback and length == record
        return same and self.tensor is tensor

    def call(self, value: Array) -> None:
        """Call the callback with a copy of `value`."""
        self._calls += 1
        if self.callback is not None:
            self.callback(value.copy())

    def remove(self) -> None:
        """Remove the tap; what a ring buffer holds stays readable."""
        if self.active:
            self.active = False
            self._drop(self)

    @property
    def count(self) -> int:
        """Number of values seen."""
        return self._calls if self.ring is None else int(self.ring.count.value)

    @property
    def values(self) -> Array:
        """Last values, the oldest first. GraphError for a tap with a callback."""
        if self.ring is None:
            raise GraphError(
                f"values requires a tap with record=, got one with a callback; write "
                f"tap(tensor, record=100){at(here())}"
            )
        values, count = self.ring.values.value, self.count
        if count <= len(values):
            return values[:count].copy()
        return np.roll(values, -(count % len(values)), axis=0)


def checked(tensor: Any, callback: Any, record: Any) -> None:
    """Raise GraphError for arguments that make no tap."""
    if not isinstance(tensor, Tensor):
        raise GraphError(
            f"tap requires a Tensor, got {type(tensor).__name__}; of a gradient that "
            f"is what sg.grad gives{at(here())}"
        )
    if (callback is None) == (record is None) or not (
        callback is None or callable(callback)
    ):
        raise GraphError(
            f"tap requires a callback or record=, got {callback!r} and {record!r}; "
            f"write tap(tensor, print) or tap(tensor, record=100){at(here())}"
        )


def check_inputs(tensor: Tensor, inputs: Sequence[Input]) -> None:
    """Raise GraphError for a tensor outside of bodies with other inputs."""
    found = (t for node in topological([tensor]) for t in node.outputs)
    missing = [t for t in found if isinstance(t, Input) and t not in set(inputs)]
    if missing:
        raise GraphError(
            f"tap requires a tensor of the executable's inputs, got {tensor.type}, "
            f"which needs {missing[0].name!r}; compile with inputs=[...]; of what a "
            "body of a loop or branch computes that is a tensor of one that runs, from "
            f"the last time its function was called, else return it from the body"
            f"{at(tensor.source)}"
        )


def warn(text: str) -> None:
    """Warn by a HookWarning at the user's line."""
    warnings.warn(f"{text}{at(here())}", HookWarning, stacklevel=4)


@contextmanager
def taps(*more: Tap) -> Iterator[list[Tap]]:
    """Context whose taps, and `more`, are removed at the end.

    >>> import staticgrad as sg
    >>> x = sg.parameter([1.0, 2.0])
    >>> f = sg.compile(sg.sum(x * x))
    >>> with sg.taps() as made:
    ...     handle = f.tap(x * x, record=10)
    ...     _ = f()
    >>> made[0].active, handle.values.tolist()
    (False, [[1.0, 4.0]])
    """
    opened = list(more)
    token = _OPEN.set(opened)
    try:
        yield opened
    finally:
        _OPEN.reset(token)
        for tap in opened:
            tap.remove()
