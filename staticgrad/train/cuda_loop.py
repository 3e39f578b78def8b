"""The training loop on a GPU: data on the device, one graph for every step.

The data is uploaded once. A step gathers its batch on the device, runs, and adds its
scalars to sums on the device, so the host has only to launch the captured graph;
several steps are one graph where they are many. The host looks at the sums, at a
failure and at Ctrl-C once in a while; a failed step stops the ones after it on the
device itself, so parameters are always those of the last finished step.

Of a training loop it does steps of a single executable.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
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
from staticgrad.compiler.cuda.device import Device, captured
from staticgrad.compiler.cuda.device_arrays import DeviceArray
from staticgrad.compiler.cuda.device_memory import DeviceMemory
from staticgrad.compiler.cuda.launches import LANES
from staticgrad.compiler.kernel_ir.plan import Plan
from staticgrad.compiler.runtime.arguments import bind_sizes
from staticgrad.compiler.runtime.assembler import Assembler, Cell
from staticgrad.compiler.runtime.vm import STATUS_CODE, STATUS_WORDS
from staticgrad.errors import CompilerBug, DeviceError, GraphError
from staticgrad.train.data import Dataset
from staticgrad.train.python_loop import carry_out
from staticgrad.train.training_loop import (
    BatchStep,
    GroupCommit,
    ShuffleOrder,
    TrainingLoop,
)

Array = npt.NDArray[Any]
Loaded: TypeAlias = tuple[Any, tuple[int, int], int, tuple[int, ...]]
"""A kernel, its grid and block, and its arguments."""

MOST_STEPS = 16  # in one captured graph
MOST_LAUNCHES = 1024  # in one captured graph
STEPS_BETWEEN_LOOKS = 128  # between checks of the host for failures and Ctrl-C


class DeviceBatch:
    """A frame for `size` samples that gathers its inputs from the data of `feed`."""

    def __init__(self, feed: CudaFeed, size: int) -> None:
        self.size = size
        self.device = feed.device
        columns = feed.step.data.columns
        shapes = [column.shape(size) for column in columns]
        sizes = bind_sizes([column.leaf for column in columns], shapes)
        self.frame = feed.target.new_frame(sizes, feed.addresses["status"])
        self._gathers = list(self._gathered(feed))
        self._recording = self._recorded(feed)
        self._graphs: dict[int, Any] = {}
        self._warm = False
        for position, column in enumerate(columns):
            if column.axis is None and position in self.frame.inputs:
                self.frame.write(position, column.array)

    @property
    def most_steps(self) -> int:
        """Largest number of steps in one graph."""
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
                self.run(steps)  # without conditional nodes the host decides
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

    def _gathered(self, feed: CudaFeed) -> Iterator[Loaded]:
        """The launches that bring the batch to where the frame reads it."""
        device, addresses, data = self.device, feed.addresses, feed.step.data
        for position, column in enumerate(data.columns):
            shape = column.shape(self.size)
            total = math.prod(shape)
            if column.axis is None or position not in self.frame.inputs or not total:
                continue
            blocks = min(-(-total // device.block), device.most_blocks)
            arguments = (
                self.frame.input_address(position), feed.resident[column.leaf.name],
                addresses["order"], addresses["cells"], total, self.size,
                math.prod(shape[column.axis + 1 :]), data.samples,
            )  # fmt: skip
            kernel = device.load(gather_source(column.array.dtype))
            yield kernel, (blocks, 1), device.block, arguments

    def _recorded(self, feed: CudaFeed) -> Loaded:
        """The launch that adds up the scalars of a step."""
        sums, table = feed.sums, feed.rows > 0
        kinds = [dtype.name for _, dtype in self.frame.shapes[: len(sums)]]
        scalars = [self.frame.output_address(n) for n in range(len(kinds))]
        places = ["totals", *(["table"] if table else []), "cells"]
        arguments = (
            *scalars, *(feed.addresses[name] for name in places), self.size,
            feed.addresses["status"],
        )  # fmt: skip
        must_be_finite = next(
            (n for n, one in enumerate(sums) if one.counted is not None), None
        )
        source = record_source(kinds, [one.once for one in sums], table, must_be_finite)
        return self.device.load(source), (1, 1), LANES, arguments


class CudaFeed:
    """The data of `step` on the device, and what the loop shares with its kernels.

    It is cut into full batches and a tail; `sums` are those of the step's executable.
    """

    def __init__(self, step: BatchStep) -> None:
        (task,) = step.tasks
        target = task.executable.target.gpu
        if target is None:
            raise CompilerBug("the loop on a GPU requires executables for one")
        _require_small(step.data)
        self.step, self.sums = step, task.sums
        self.target, self.device = target, target.device
        column = self.sums[0].column
        self.rows = 0 if column is None else len(column)
        count = len(self.sums)
        shared = {
            "order": 8 * step.data.samples, "cells": 8 * CELLS, "totals": 8 * count,
            "table": 8 * count * self.rows, "status": 8 * STATUS_WORDS,
        }  # fmt: skip
        self._shared = DeviceMemory(self.device, shared)
        self.addresses = self._shared.addresses
        self.resident, self._memory = _brought(self.device, step.data)
        tail = step.data.samples % step.size
        self.full_samples = step.data.samples - tail
        self._clear_status()
        sizes = (step.size if self.full_samples else 0, tail)
        self.batches = [DeviceBatch(self, size) for size in sizes if size]

    def _next(self) -> DeviceBatch:
        return self.batches[0 if self.step.seen.value < self.full_samples else -1]

    def write(self, name: str, values: npt.ArrayLike, dtype: type) -> None:
        """Write what is shared from the host."""
        array: Array = np.ascontiguousarray(values, dtype)
        if array.size:
            self.device.write(self.addresses[name], array)

    def _read(self, name: str, count: int, dtype: type) -> Array:
        """Read the memory that is shared, after all work."""
        array: Array = np.zeros(count, dtype)
        if count:
            self.device.read(self.addresses[name], array)
        return array

    def _clear_status(self) -> None:
        self.device.fill(self.addresses["status"], 0, 8 * STATUS_WORDS)

    def start(self) -> None:
        """Bring parameters, states and where the loop stands to the device."""
        for batch in self.batches:
            batch.frame.upload()
        start = np.zeros(CELLS, np.int64)
        start[SEEN], start[STEPS] = self.step.seen.value, self.step.steps.value
        for one in self.sums:
            if one.counted is not None:
                start[COUNTED] = one.counted.value
        self.write("order", self.step.order, np.int64)
        self.write("totals", [one.total.value for one in self.sums], np.float64)
        self.write("cells", start, np.int64)
        self._clear_status()

    def launch(self) -> None:
        """Some steps of one size."""
        step = self.step
        left = max((self.full_samples - step.seen.value) // step.size, 1)
        count = min(left, step.limit - step.steps.value, STEPS_BETWEEN_LOOKS)
        self._next().run(count)

    def look(self) -> BaseException | None:
        """Take over what the device has done; the error of a step that failed."""
        sums, step = self.sums, self.step
        cells = self._read("cells", CELLS, np.int64)
        totals = self._read("totals", len(sums), np.float64)
        steps = int(cells[STEPS])
        known = len(sums) * steps if self.rows else 0
        table = self._read("table", known, np.float64)
        for number, one in enumerate(sums):
            one.total.value = totals[number]
            if one.counted is not None:
                one.counted.value = int(cells[COUNTED])
            if one.column is not None:
                one.column[:steps] = table[number :: len(sums)]
        step.seen.value = int(cells[SEEN])
        step.count.value += steps - step.steps.value
        step.steps.value = steps
        return self._failure(cells[SEALED:])

    def _failure(self, status: Array) -> BaseException | None:
        """Return the report of the first failed step, if one has failed."""
        if not status[STATUS_CODE]:
            return None
        batch, step = self._next(), self.step
        error = batch.frame.error(status)
        rows = step.order[step.seen.value :][: batch.size]
        return step.tasks[0].executable.traced(error, step.data.batch(rows))


def _brought(device: Device, data: Dataset) -> tuple[dict[str, int], DeviceMemory[str]]:
    """Return the device address of each batched array, and the owner of new ones."""
    arrays: dict[str, Any] = {
        c.leaf.name: c.array for c in data.columns if c.axis is not None
    }
    here = {n: a for n, a in arrays.items() if not isinstance(a, DeviceArray)}
    memory = DeviceMemory(device, {name: array.nbytes for name, array in here.items()})
    for name, array in here.items():
        if array.size:
            device.write(memory.addresses[name], np.ascontiguousarray(array))
    away = {n: a.address for n, a in arrays.items() if n not in here}
    return {**memory.addresses, **away}, memory


def _require_small(data: Dataset) -> None:
    for column in data.columns:
        if column.array.size >= 2**32:
            raise GraphError(
                "target 'cuda' requires data of less than 2**32 elements, got "
                f"{column.array.size} for {column.leaf.name!r}; use target='cpu'"
            )


class CudaLoop:
    """Carries out `loop`, whose steps have a single executable each."""

    def __init__(self, loop: TrainingLoop) -> None:
        self._loop = loop
        self._run = loop.run
        self._feeds: dict[BatchStep | GroupCommit, CudaFeed] = {
            step: CudaFeed(step) for step in loop.steps
        }
        self._started: CudaFeed | None = None

    @property
    def plan(self) -> Plan:
        """The plan of a step."""
        first, *_ = self._feeds.values()
        return first.batches[0].frame.sized.plan

    def run(self) -> None:
        """Go on to the end; KeyboardInterrupt, or what a step has reported."""
        self._started = None  # parameters may have changed meanwhile
        carry_out(self._loop, self._launch, _shuffle)

    def _launch(self, step: BatchStep | GroupCommit) -> None:
        feed = self._feeds[step]
        if feed is not self._started or not feed.step.seen.value:
            feed.start()
            self._started = feed
        failed: BaseException | None = None
        try:
            feed.launch()
        except BaseException as error:  # noqa: BLE001  the host looked at a step
            failed = error
        failed = feed.look() or failed
        if failed is not None:
            raise self._run.located(failed)


def _shuffle(statement: ShuffleOrder) -> None:
    order, assembler = statement.order, Assembler()
    assembler.shuffle(order, len(order), statement.seed, statement.epoch)
    assembler.finish().run(Cell(0))
