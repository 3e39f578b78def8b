"""Callbacks between epochs, and early stopping."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from staticgrad.errors import GraphError
from staticgrad.ir.source import at, here
from staticgrad.train.data import whole
from staticgrad.train.run import Run

Callback: TypeAlias = Callable[[int, dict[str, float]], Any]


def listed(
    callbacks: Callback | Iterable[Callback] | None, patience: int | None
) -> list[Callback]:
    """Return all callbacks, early stopping last."""
    found = [callbacks] if callable(callbacks) else _callables(callbacks or ())
    return found if patience is None else [*found, early_stopping(patience)]


def _callables(callbacks: Iterable[Callback]) -> list[Callback]:
    """Return the list of `callbacks`; GraphError if one cannot be called."""
    found = list(callbacks) if isinstance(callbacks, Iterable) else [callbacks]
    for callback in found:
        if not callable(callback):
            raise GraphError(
                f"fit requires callbacks that can be called, got {callback!r}; pass "
                f"functions of the epoch and its row{at(here())}"
            )
    return found


def early_stopping(patience: int) -> Callback:
    """Return a callback that stops after `patience` epochs without a new minimum.

    It looks at ``val_loss``, without validation at ``loss``; with several phases at the
    first one's.
    """
    patience = whole("early_stopping", patience)
    if patience < 1:
        raise GraphError(
            f"fit requires early_stopping of at least 1, got {patience}; "
            f"pass a number of epochs{at(here())}"
        )
    least, waited = math.inf, 0

    def callback(epoch: int, row: dict[str, float]) -> bool:
        nonlocal least, waited
        first = next(name for name in row if not name.startswith("val_"))
        loss = row.get(f"val_{first}", row[first])
        waited = 0 if loss < least else waited + 1
        least = min(least, loss)
        return waited >= patience

    return callback


def advance(
    run: Run, work: Callable[[], object], callbacks: Sequence[Callback]
) -> None:
    """Run `run` to its end: at once, or epoch by epoch with `callbacks` between.

    `work` continues to the epoch in the cell ``last_epoch``.
    """
    if not callbacks:
        work()
        return
    last = run.last_epoch.value
    try:
        while not run.done:
            epoch = run.epoch.value
            run.last_epoch.value = epoch + 1
            work()
            row = run.last_row()
            answers = [callback(epoch, row) for callback in callbacks]
            run.ended.value = True in answers
    finally:
        run.last_epoch.value = last
