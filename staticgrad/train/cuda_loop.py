"""The training loop of the cuda target: data on the device, one graph for every step.

The data is uploaded once. A step gathers its batch on the device, runs, and adds its
scalars to sums on the device, so the host has only to launch the captured graph;
several steps are one graph where they are many. The host looks at the sums, at a
failure and at Ctrl-C once in a while; a failed step stops the ones after it on the
device itself, so parameters are always those of the last finished step.

Order of samples, sums and history are those of native_loop.py and python_loop.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from staticgrad.compiler.cuda.batch_feeding import (
    CELLS,
    COUNTED,
    SEALED,
    SEEN,
    STEPS,
    gather_source,
    record_source,
)
from staticgrad.compiler.cuda.cuda_frame import CudaFrame
from staticgrad.compiler.cuda.device import Device, captured, using
from staticgrad.compiler.cuda.device_arrays import DeviceArray
from staticgrad.compiler.cuda.device_memory import DeviceMemory
from staticgrad.compiler.cuda.launches import LANES
from staticgrad.compiler.kernel_ir.plan import Plan
from staticgrad.compiler.runtime.arguments import bind_sizes
from staticgrad.compiler.runtime.assembler import Assembler, Cell
from staticgrad.compiler.runtime.executable import Executable
from staticgrad.compiler.runtime.targets.cuda_target import CudaTarget
from staticgrad.compiler.runtime.vm import FINISHED, STATUS_CODE, STATUS_WORDS, STOPPED
from staticgrad.errors import DeviceError, GraphError
from staticgrad.train.data import Dataset
from staticgrad.train.run import Run

Array = npt.NDArray[Any]
Loaded: TypeAlias = tuple[Any, tuple[int, int], int, tuple[int, ...]]
"""A kernel, its grid and block, and its arguments."""

MOST_STEPS = 16  # of one graph
MOST_LAUNCHES = 1024  # of one graph
STEPS_BETWEEN_LOOKS = 128  # after which the host looks for failures and Ctrl-C


@dataclass(slots=True)
class Cells:
    """Device memory that a loop shares with its kernels.

    `must_be_finite` is the name of the scalar that has to be finite for a batch to
    count, if any.
    """

    device: Device
    samples: int
    names: tuple[str, ...]
    per_update_metrics: frozenset[str]
    steps: int
    must_be_finite: str | None
    memory: DeviceMemory[str] = field(init=False)

    def __post_init__(self) -> None:
        reported = len(self.names)
        sizes = {
            "order": 8 * self.samples, "cells": 8 * CELLS, "totals": 8 * reported,
            "table": 8 * reported * self.steps, "status": 8 * STATUS_WORDS,
        }  # fmt: skip
        self.memory = DeviceMemory(self.device, sizes)
        self.device.fill(self.address("status"), 0, 8 * STATUS_WORDS)

    def address(self, name: str) -> int:
        """Where a part is."""
        return self.memory.addresses[name]

    def write(self, name: str, values: npt.ArrayLike, dtype: type) -> None:
        """Write a part from the host."""
        array: Array = np.ascontiguousarray(values, dtype)
        if array.size:
            self.device.write(self.address(name), array)

    def read(self, name: str, count: int, dtype: type) -> Array:
        """A part, after all work."""
        array: Array = np.zeros(count, dtype)
        if count:
            self.device.read(self.address(name), array)
        return array


class CudaBatch:
    """A frame for `size` samples that gathers its inputs from resident data."""

    def __init__(
        self, executable: Executable, data: Dataset, resident: dict[str, int],
        size: int, cells: Cells,
    ) -> None:  # fmt: skip
        target = executable.target
        assert isinstance(target, CudaTarget)
        self.size = size
        self.cells = cells
        self.device = target.device
        leaves = [column.leaf for column in data.columns]
        shapes = [column.shape(size) for column in data.columns]
        sizes = bind_sizes(leaves, shapes)
        self.frame: CudaFrame = target.new_frame(sizes, cells.address("status"))
        self._gathers = self._gathered(data, resident)
        self._recording = self._recorded()
        self._graphs: dict[int, Any] = {}
        self._warm = False
        for position, column in enumerate(data.columns):
            if column.axis is None and position in self.frame.inputs:
                self.frame.write(position, column.array)

    @property
    def most_steps(self) -> int:
        """How many steps one graph may hold."""
        launches = len(self.frame.sized.steps) + len(self._gathers) + 1
        return max(min(MOST_STEPS, MOST_LAUNCHES // launches), 1)

    def run(self, steps: int) -> None:
        """Launch so many steps."""
        while steps > 0 and not (self._warm and self.frame.capturable):
            self._issue(1)
            self._warm = True
            steps -= 1
        while steps > 0:
            count = self.most_steps if steps >= self.most_steps else 1
            try:
                graph = self._graph(count)
            except DeviceError:
                if self.frame.capturable:
                    raise
                self.run(steps)  # without conditional nodes the host looks
                return
            self.device.replay(graph)
            steps -= count

    def _graph(self, count: int) -> Any:
        if count not in self._graphs:
            self._graphs[count] = captured(self.device, lambda: self._issue(count))
        return self._graphs[count]

    def _issue(self, steps: int) -> None:
        for _ in range(steps):
            for kernel, grid, block, arguments in self._gathers:
                self.device.launch(kernel, grid, block, arguments)
            self.frame.issue()
            kernel, grid, block, arguments = self._recording
            self.device.launch(kernel, grid, block, arguments)

    def _gathered(self, data: Dataset, resident: Mapping[str, int]) -> list[Loaded]:
        """The launches that bring the batch to where the frame reads it."""
        device, cells = self.device, self.cells
        found: list[Loaded] = []
        for position, column in enumerate(data.columns):
            shape = column.shape(self.size)
            total = math.prod(shape)
            if column.axis is None or position not in self.frame.inputs or not total:
                continue
            blocks = min(-(-total // device.block), device.most_blocks)
            arguments = (
                self.frame.input_address(position), resident[column.leaf.name],
                cells.address("order"), cells.address("cells"), total, self.size,
                math.prod(shape[column.axis + 1 :]), data.samples,
            )  # fmt: skip
            kernel = device.load(gather_source(column.array.dtype))
            found.append((kernel, (blocks, 1), device.block, arguments))
        return found

    def _recorded(self) -> Loaded:
        """The launch that adds up the scalars of a step."""
        cells = self.cells
        kinds = [dtype.name for _, dtype in self.frame.shapes[: len(cells.names)]]
        table = cells.steps > 0
        scalars = [self.frame.output_address(n) for n in range(len(kinds))]
        places = ["totals", "table", "cells"] if table else ["totals", "cells"]
        arguments = (
            *scalars, *map(cells.address, places), self.size, cells.address("status"),
        )  # fmt: skip
        once = [name in cells.per_update_metrics for name in cells.names]
        must_be_finite = (
            None
            if cells.must_be_finite is None
            else cells.names.index(cells.must_be_finite)
        )
        kernel = self.device.load(record_source(kinds, once, table, must_be_finite))
        return kernel, (1, 1), LANES, arguments


class CudaFeed:
    """A dataset on the device, cut into full batches and a tail."""

    def __init__(
        self, executable: Executable, data: Dataset, batch_size: int,
        names: Sequence[str], per_update_metrics: Sequence[str] = (), steps: int = 0,
        must_be_finite: str | None = None,
    ) -> None:  # fmt: skip
        target = executable.target
        assert isinstance(target, CudaTarget)
        _require_small(data)
        self.executable = executable
        self.data = data
        self.cells = Cells(
            target.device,
            data.samples,
            tuple(names),
            frozenset(per_update_metrics),
            steps,
            must_be_finite,
        )
        batched = [column for column in data.columns if column.axis is not None]
        arrays: dict[str, Any] = {c.leaf.name: c.array for c in batched}
        away = {
            name: array.address
            for name, array in arrays.items()
            if isinstance(array, DeviceArray)
        }
        brought = [c for c in batched if c.leaf.name not in away]
        self._memory = DeviceMemory(
            target.device, {c.leaf.name: c.array.nbytes for c in brought}
        )
        self._resident = {**self._memory.addresses, **away}
        for column in brought:
            if column.array.size:
                address = self._resident[column.leaf.name]
                target.device.write(address, np.ascontiguousarray(column.array))
        self.full_samples = data.samples // batch_size * batch_size
        tail = data.samples - self.full_samples
        self.full = self._batch(batch_size) if self.full_samples else None
        self.tail = self._batch(tail) if tail else None

    def _batch(self, size: int) -> CudaBatch:
        return CudaBatch(self.executable, self.data, self._resident, size, self.cells)

    @property
    def plan(self) -> Plan:
        """The plan of a step."""
        return self.batches[0].frame.sized.plan

    @property
    def batches(self) -> tuple[CudaBatch, ...]:
        """The full batch and the tail, as far as they exist."""
        return tuple(b for b in (self.full, self.tail) if b is not None)

    def upload(self) -> None:
        """Bring parameters and states to the device."""
        for batch in self.batches:
            batch.frame.upload()

    def run(self, seen: int, steps: int) -> int:
        """Launch at most so many steps of one size; returns how many."""
        if self.full is not None and seen < self.full_samples:
            left = (self.full_samples - seen) // self.full.size
            count = min(left, steps)
            self.full.run(count)
            return count
        assert self.tail is not None
        self.tail.run(1)
        return 1

    def failure(self, order: Array) -> BaseException | None:
        """What the first failed step has reported, if one has; it is cleared."""
        cells = self.cells.read("cells", CELLS, np.int64)
        status = cells[SEALED:]
        if not status[STATUS_CODE]:
            return None
        seen = int(cells[SEEN])
        batch = self.full if self.full and seen < self.full_samples else self.tail
        assert batch is not None
        error = batch.frame.error(status)
        rows = order[seen : seen + batch.size]
        return self.executable.traced(error, self.data.batch(rows))


def beside(executable: Executable) -> AbstractContextManager[None]:
    """A context in which executables use the device of `executable`."""
    assert isinstance(executable.target, CudaTarget)
    return using(executable.target.device)


def _require_small(data: Dataset) -> None:
    for column in data.columns:
        if column.array.size >= 2**32:
            raise GraphError(
                "target 'cuda' requires data of less than 2**32 elements, got "
                f"{column.array.size} for {column.leaf.name!r}; use target='cpu'"
            )


def feeds(
    run: Run, step: Executable, reported: Sequence[str], data: Dataset,
    score: Executable | None, scored: Dataset | None,
) -> tuple[CudaFeed, CudaFeed | None]:  # fmt: skip
    """What `train` takes: the data, and that of validation, on the device."""
    settings = run.settings
    size = settings.batch_size
    steps = len(run.columns[reported[0]]) if settings.record == "step" else 0
    must_be_finite = next(iter(run.counted), None)
    feed = CudaFeed(
        step, data, size, reported, settings.per_update_metrics, steps, must_be_finite
    )
    if score is None or scored is None:
        return feed, None
    return feed, CudaFeed(score, scored, min(size, scored.samples), settings.names)


def train(run: Run, feed: CudaFeed, validation: CudaFeed | None, stop: Cell) -> int:
    """Continue `run` until it is done (FINISHED) or `stop` is set (STOPPED)."""
    while run.started.value or (
        not run.done and run.epoch.value < run.last_epoch.value
    ):
        if not run.started.value:
            _start_epoch(run)
        if not _epoch(run, feed, stop):
            return STOPPED
        if validation is not None and not validate(run, validation, stop):
            return STOPPED
        run.finish_epoch()
    return FINISHED


def _start_epoch(run: Run) -> None:
    if run.settings.shuffle:
        assembler = Assembler()
        samples = run.settings.samples
        assembler.shuffle(run.order, samples, run.seed, run.epoch)
        assembler.finish().run(Cell(0))
    run.start_epoch()


def _epoch(run: Run, feed: CudaFeed, stop: Cell) -> bool:
    """The steps that are left of an epoch; False if stopped before."""
    cells, settings = feed.cells, run.settings
    feed.upload()
    cells.write("order", run.order, np.int64)
    cells.write("totals", [run.totals[n].value for n in cells.names], np.float64)
    start = np.zeros(CELLS, np.int64)
    start[SEEN], start[STEPS] = run.seen.value, run.steps.value
    for counted in run.counted.values():
        start[COUNTED] = counted.value
    cells.write("cells", start, np.int64)
    cells.device.fill(cells.address("status"), 0, 8 * STATUS_WORDS)
    while run.steps.value < settings.steps and run.seen.value < settings.samples:
        if stop.value:
            return False
        left = min(settings.steps - run.steps.value, STEPS_BETWEEN_LOOKS)
        try:
            feed.run(run.seen.value, left)
        except BaseException as error:  # noqa: BLE001  the host looked at a step
            _look(run, feed)
            raise run.located(error) from None
        _look(run, feed)
    return True


def _look(run: Run, feed: CudaFeed) -> None:
    """Take over what the device has done; raises what a step has reported."""
    cells = feed.cells.read("cells", CELLS, np.int64)
    names = feed.cells.names
    totals = feed.cells.read("totals", len(names), np.float64)
    for name, value in zip(names, totals.tolist(), strict=True):
        run.totals[name].value = value
    run.seen.value = int(cells[SEEN])
    for counted in run.counted.values():
        counted.value = int(cells[COUNTED])
    if feed.cells.steps:
        rows = feed.cells.read("table", len(names) * int(cells[STEPS]), np.float64)
        for number, name in enumerate(names):
            run.columns[name][: cells[STEPS]] = rows[number :: len(names)]
    run.commits.value += int(cells[STEPS]) - run.steps.value
    run.steps.value = int(cells[STEPS])
    error = feed.failure(run.order)
    if error is not None:
        raise run.located(error)


def validate(run: Run, feed: CudaFeed, stop: Cell) -> bool:
    """Fill the validation columns of the current row; False if stopped before."""
    cells, samples = feed.cells, feed.data.samples
    order = np.arange(samples, dtype=np.int64)
    feed.upload()
    cells.write("order", order, np.int64)
    cells.write("totals", np.zeros(len(cells.names)), np.float64)
    cells.write("cells", np.zeros(CELLS), np.int64)
    cells.device.fill(cells.address("status"), 0, 8 * STATUS_WORDS)
    seen = 0
    while seen < samples:
        if stop.value:
            return False
        feed.run(seen, STEPS_BETWEEN_LOOKS)
        error = feed.failure(order)
        if error is not None:
            raise run.located(error)
        seen = int(cells.read("cells", CELLS, np.int64)[SEEN])
    totals = cells.read("totals", len(cells.names), np.float64)
    for name, total in zip(cells.names, totals.tolist(), strict=True):
        run.columns[f"val_{name}"][run.row.value] = total / samples
    return True


def score(run: Run, feed: CudaFeed, stop: Cell) -> int:
    """Only the validation of `run`."""
    return FINISHED if validate(run, feed, stop) else STOPPED
