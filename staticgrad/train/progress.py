"""The progress bar: a thread that reads the cells of a run and moves tqdm's bar."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from staticgrad.ir.lazy_module import Later
from staticgrad.train.run import Run

tqdm = Later("tqdm")

SECONDS_BETWEEN = 0.1


@contextmanager
def shown(run: Run, progress: bool) -> Iterator[None]:
    """A bar over the steps of `run`, with the last row of its history."""
    if not progress:
        yield
        return
    settings = run.settings
    steps = min(settings.steps, settings.epochs * settings.steps_per_epoch)
    leave = threading.Event()
    with tqdm.tqdm(total=steps, initial=run.steps.value, unit="step") as bar:
        thread = threading.Thread(target=_follow, args=(bar, run, leave), daemon=True)
        thread.start()
        try:
            yield
        finally:
            leave.set()
            thread.join()


def _follow(bar: Any, run: Run, leave: threading.Event) -> None:
    while not leave.wait(SECONDS_BETWEEN):
        _move(bar, run)
    _move(bar, run)


def _move(bar: Any, run: Run) -> None:
    steps, epoch = run.steps.value, run.row.value
    bar.set_description(f"epoch {epoch}", refresh=False)
    row = {name: f"{value:.4g}" for name, value in run.last_row().items()}
    bar.set_postfix(row, refresh=False)
    bar.n = steps
    bar.refresh()
