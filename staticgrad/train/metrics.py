"""Metrics: means over the batch, as graph expressions that Trainer records.

Each mean is over the samples of one batch; Trainer weights batches by their samples.
"""

from __future__ import annotations

from staticgrad import ops
from staticgrad.errors import ShapeError
from staticgrad.ir.node import Tensor
from staticgrad.ir.source import at, here


def accuracy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the share of rows whose largest logit is the label, a float32 scalar.

    `logits` is (n, classes, ...), `labels` integers (n, ...); the first maximum counts.

    >>> import staticgrad as sg
    >>> y = accuracy(sg.constant([[2.0, 1.0], [0.0, 3.0]]), sg.constant([0, 0]))
    >>> float(sg.compile(y, target="reference")())
    0.5
    """
    axis = min(logits.ndim - 1, 1)
    guess = ops.argmax(logits, axis=axis)
    if guess.shape != labels.shape:
        raise ShapeError(
            f"accuracy requires one label per row, got {logits.type} and "
            f"{labels.type}; reshape the labels{at(here())}"
        )
    return ops.mean(ops.equal(guess, labels).astype("float32"))


def mean_squared_error(x: Tensor, target: Tensor) -> Tensor:
    """Return ``mean((x - target)^2)`` of equal shapes.

    >>> import staticgrad as sg
    >>> y = mean_squared_error(sg.constant([1.0, 2.0]), sg.constant([0.0, 4.0]))
    >>> float(sg.compile(y, target="reference")())
    2.5
    """
    difference = _difference("mean_squared_error", x, target)
    return ops.mean(difference * difference)


def mean_absolute_error(x: Tensor, target: Tensor) -> Tensor:
    """Return ``mean(|x - target|)`` of equal shapes."""
    return ops.mean(ops.absolute(_difference("mean_absolute_error", x, target)))


def _difference(name: str, x: Tensor, target: Tensor) -> Tensor:
    if x.shape != target.shape:
        raise ShapeError(
            f"{name} requires equal shapes, got {x.type} and {target.type}; "
            f"reshape one of them{at(here())}"
        )
    return x - target
