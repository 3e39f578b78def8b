"""Losses, with PyTorch's conventions.

Classes lie on axis 1 (axis 0 of a vector). `reduction` is "mean", "sum" or "none".
Integer labels are checked while the graph runs: one outside 0..classes-1 is an
IndexOutOfRange that names the line of the call. The label's logit is picked by
comparison with the position, not by a gather, so the loss and its gradient fuse.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from staticgrad import ops
from staticgrad.errors import DTypeError, GraphError, ShapeError
from staticgrad.ir.node import Tensor
from staticgrad.ir.source import at, here
from staticgrad.ir.types import INT32, INT64, is_float, kind_of
from staticgrad.ops.index import checked, position
from staticgrad.ops.promote import widened

Reduction: TypeAlias = Literal["mean", "sum", "none"]


@widened
def cross_entropy(
    logits: Tensor, labels: Tensor, reduction: Reduction = "mean"
) -> Tensor:
    """``-log softmax(logits)[label]``: (n, classes, ...) and (n, ...) -> scalar.

    `labels` are integers in 0..classes-1, or probabilities of the logits' shape.
    """
    _require_float("cross_entropy", logits)
    axis = _class_axis("cross_entropy", logits)
    log_p = ops.log_softmax(logits, axis=axis)
    if is_float(labels.dtype):
        _require_same_shape("cross_entropy", logits, labels)
        loss = -ops.sum(labels.astype(log_p.dtype) * log_p, axis=axis)
        return _reduced("cross_entropy", loss, reduction)
    loss = -_picked("cross_entropy", log_p, labels, axis)
    return _reduced("cross_entropy", loss, reduction)


@widened
def nll_loss(
    log_probabilities: Tensor, labels: Tensor, reduction: Reduction = "mean"
) -> Tensor:
    """``-log_probabilities[label]``: (n, classes, ...) and integers (n, ...)."""
    _require_float("nll_loss", log_probabilities)
    axis = _class_axis("nll_loss", log_probabilities)
    loss = -_picked("nll_loss", log_probabilities, labels, axis)
    return _reduced("nll_loss", loss, reduction)


@widened
def mse_loss(x: Tensor, target: Tensor, reduction: Reduction = "mean") -> Tensor:
    """``(x - target)^2``; the shapes are equal (a broadcast here is a mistake)."""
    _require_float("mse_loss", x)
    _require_same_shape("mse_loss", x, target)
    difference = x - target
    return _reduced("mse_loss", difference * difference, reduction)


@widened
def binary_cross_entropy_with_logits(
    logits: Tensor, target: Tensor, reduction: Reduction = "mean"
) -> Tensor:
    """``-t log sigmoid(x) - (1 - t) log(1 - sigmoid(x))``, without overflow.

    Computed as ``(1 - t) x + softplus(-x)``; targets lie in 0..1, of any dtype.
    """
    name = "binary_cross_entropy_with_logits"
    _require_float(name, logits)
    _require_same_shape(name, logits, target)
    t = target if is_float(target.dtype) else target.astype(logits.dtype)
    loss = (1 - t) * logits + ops.softplus(-logits)
    return _reduced(name, loss, reduction)


def _picked(name: str, x: Tensor, labels: Tensor, axis: int) -> Tensor:
    """``x[label]`` along `axis`, by comparison of label and position."""
    if kind_of(labels.dtype) not in "iu":
        raise DTypeError(
            f"{name} requires integer labels, got {labels.type}; "
            f"cast them with .astype('int64'){at(here())}"
        )
    expected = x.shape[:axis] + x.shape[axis + 1 :]
    if labels.shape != expected:
        shape = ", ".join(map(str, expected))
        raise ShapeError(
            f"{name} requires labels of shape [{shape}], got {x.type} and "
            f"{labels.type}; give one label per row of logits{at(here())}"
        )
    label = checked(labels.astype(INT64), x.shape[axis], False, name)
    # Checked labels fit in int32, of which twice as many are compared at once.
    place = ops.astype(ops.expand_dims(label, axis), INT32)
    hit = ops.equal(position(x.shape, axis, INT32), place)
    return ops.sum(ops.where(hit, x, 0.0), axis=axis)


def _class_axis(name: str, logits: Tensor) -> int:
    if logits.ndim == 0:
        raise ShapeError(
            f"{name} requires an axis of classes, got {logits.type}; "
            f"give (n, classes) logits{at(here())}"
        )
    return min(logits.ndim - 1, 1)


def _require_float(name: str, x: Tensor) -> None:
    if not is_float(x.dtype):
        raise DTypeError(
            f"{name} requires floats, got {x.type}; cast with .astype('float32')"
            f"{at(here())}"
        )


def _require_same_shape(name: str, x: Tensor, target: Tensor) -> None:
    if x.shape != target.shape:
        raise ShapeError(
            f"{name} requires equal shapes, got {x.type} and {target.type}; "
            f"reshape one of them{at(here())}"
        )


def _reduced(name: str, loss: Tensor, reduction: Reduction) -> Tensor:
    if reduction == "none":
        return loss
    if reduction == "sum":
        return ops.sum(loss)
    if reduction == "mean":
        return ops.mean(loss)
    raise GraphError(
        f"{name} requires reduction 'mean', 'sum' or 'none', got {reduction!r}"
        f"{at(here())}"
    )
