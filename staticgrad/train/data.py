"""Data for training: arrays by input name, cut into batches.

For each input the axis whose size is the symbol ``batch`` is cut; an input without one
passes whole. Arrays are cast and made contiguous once, before training. Where the batch
axis is not the first, a batch is gathered in pieces: one per index of the axes before.
With target "cuda", arrays on the GPU stay where they are.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from staticgrad.compiler.runtime.arguments import Signature, bind_sizes
from staticgrad.errors import GraphError, ShapeError
from staticgrad.ir.node import Input
from staticgrad.ir.size import Size
from staticgrad.ir.source import at, here

BATCH = Size.symbol("batch")

Array = npt.NDArray[Any]
Given = Callable[[Signature, Sequence[Any]], list[Any]]
BatchAxis = int | None | Mapping[str, int | None]


@dataclass(frozen=True, slots=True)
class Column:
    """Data of one input; `axis` is the batch axis, None if it is passed whole.

    What lies on a GPU is a DeviceArray.
    """

    leaf: Input
    array: Array
    axis: int | None

    def shape(self, size: int) -> tuple[int, ...]:
        """Return the shape of a batch of `size` samples."""
        if self.axis is None:
            return self.array.shape
        return (
            *self.array.shape[: self.axis],
            size,
            *self.array.shape[self.axis + 1 :],
        )

    def take(self, rows: Array) -> Array:
        """Return the batch of the samples `rows`."""
        array: Array = np.asarray(self.array)
        return array if self.axis is None else array.take(rows, axis=self.axis)

    def on_host(self) -> Column:
        """Return the column on the host, copied if it is on a GPU."""
        return replace(self, array=np.asarray(self.array))


@dataclass(frozen=True, slots=True)
class Dataset:
    """Columns of equally many samples; one sample where no input is batched."""

    columns: tuple[Column, ...]
    samples: int

    @property
    def batched(self) -> bool:
        """Whether any input is cut into batches."""
        return any(column.axis is not None for column in self.columns)

    def batch(self, rows: Array) -> dict[str, Array]:
        """Return the inputs of the samples `rows`."""
        return {column.leaf.name: column.take(rows) for column in self.columns}

    def on_host(self) -> Dataset:
        """Return the columns on the host, those on a GPU copied."""
        return replace(self, columns=tuple(c.on_host() for c in self.columns))

    def batch_size(self, wanted: int | None) -> int:
        """Return the batch size to use: all samples for None or more than there are."""
        if wanted is None:
            return self.samples
        if not self.batched:
            raise GraphError(
                f"batch_size requires an input with a 'batch' axis, got {wanted} for "
                "inputs without one; leave it out, name the axis 'batch', or give "
                "batch_axis="
                f"{at(here())}"
            )
        wanted = whole("batch_size", wanted)
        if wanted < 1:
            raise GraphError(
                f"batch_size requires at least 1, got {wanted}; leave it out for all "
                f"samples in one batch{at(here())}"
            )
        return min(wanted, self.samples)


def whole(name: str, number: SupportsIndex) -> int:
    """Return `number` as an int; a located GraphError if it is no integer."""
    try:
        return int(operator.index(number))
    except TypeError:
        raise GraphError(
            f"{name} requires a whole number, got {number!r}; pass an int{at(here())}"
        ) from None


def samples_of(inputs: Sequence[Input], batch: Mapping[str, Array]) -> int:
    """Return the number of samples in a batch: the size ``batch``, or one."""
    leaf = next((leaf for leaf in inputs if BATCH in leaf.shape), None)
    return 1 if leaf is None else batch[leaf.name].shape[leaf.shape.index(BATCH)]


def dataset(
    inputs: Sequence[Input],
    data: Mapping[str, Any],
    batch_axis: BatchAxis = None,
    may_be_empty: bool = False,
    given: Given = Signature.on_host,
) -> Dataset:
    """Return the Dataset of `data`, one array per input of `inputs`.

    `batch_axis` (a number for every input, or a dict) takes the place of the axis
    named ``batch``. ``given(signature, values)`` says what lies on a GPU, or refuses
    it. Raises GraphError for missing or unknown names and unequal lengths,
    ValueError for empty data unless it `may_be_empty`, DTypeError and ShapeError as a
    call does.
    """
    _require_names(inputs, data)
    values = given(Signature(inputs), [data[leaf.name] for leaf in inputs])
    columns = tuple(
        _column(leaf, value, batch_axis)
        for leaf, value in zip(inputs, values, strict=True)
    )
    lengths = {
        column.leaf.name: column.array.shape[column.axis]
        for column in columns
        if column.axis is not None
    }
    if len(set(lengths.values())) > 1:
        raise GraphError(
            f"data requires equally many samples in every input, got {lengths}; "
            f"cut them to one length{at(here())}"
        )
    samples = next(iter(lengths.values()), 1)
    if samples == 0 and not may_be_empty:
        raise ValueError(
            "data requires at least one sample, got empty arrays; give some"
            f"{at(here())}"
        )
    bind_sizes(inputs, [column.array.shape for column in columns])
    return Dataset(columns, samples)


def _require_names(inputs: Sequence[Input], data: Mapping[str, Any]) -> None:
    if not isinstance(data, Mapping):
        raise GraphError(
            "data requires a dict from input name to array, got "
            f"{type(data).__name__}; write {{'x': X}}, or call trainer.step(x=...) for "
            f"batches that come one by one{at(here())}"
        )
    known = [leaf.name for leaf in inputs]
    missing = [name for name in known if name not in data]
    unknown = [name for name in data if name not in known]
    if missing or unknown:
        raise GraphError(
            f"data requires the inputs {known}, got {list(data)}; "
            f"missing: {missing}, unknown: {unknown}{at(here())}"
        )


def _column(leaf: Input, value: Any, batch_axis: BatchAxis) -> Column:
    (array,) = Signature([leaf]).arrays([value])
    if array.ndim != leaf.ndim:
        raise ShapeError(
            f"data requires {leaf.type} for {leaf.name}, got shape {array.shape}; "
            f"pass an array with {leaf.ndim} axes{at(here())}"
        )
    sizes = zip(leaf.shape, array.shape, strict=True)
    fits = all(n == size for n, size in sizes if isinstance(n, int))
    if not fits and BATCH not in leaf.shape:
        raise ShapeError(
            f"data requires {leaf.type} for {leaf.name}, got shape {array.shape}; name "
            "the axis that is to be cut 'batch', or call trainer.step with each batch"
            f"{at(here())}"
        )
    axis = _axis(leaf, batch_axis)
    return Column(leaf, array, axis)


def _axis(leaf: Input, batch_axis: BatchAxis) -> int | None:
    axis = leaf.shape.index(BATCH) if BATCH in leaf.shape else None
    if isinstance(batch_axis, Mapping):
        axis = batch_axis.get(leaf.name, axis)
    elif batch_axis is not None:
        axis = batch_axis
    if axis is None:
        return None
    axis = whole("batch_axis", axis)
    if not -leaf.ndim <= axis < leaf.ndim:
        raise GraphError(
            f"batch_axis requires an axis of {leaf.name} {leaf.type}, got {axis}; "
            f"count from 0, or from the last with -1{at(here())}"
        )
    return axis % leaf.ndim
