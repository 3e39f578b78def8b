"""Losses, with PyTorch's conventions.

Classes lie on axis 1 (axis 0 of a vector). `reduction` is "mean", "sum" or "none".
Integer labels are checked while the graph runs: one outside 0..classes-1 is an
IndexOutOfRange that names the line of the call, unless it is the one to be ignored.
The label's logit is picked by comparison with the position, not by a gather, so the
loss and its gradient fuse.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from staticgrad import ops
from staticgrad.errors import DTypeError, GraphError, ShapeError
from staticgrad.ir.node import Tensor
from staticgrad.ir.source import at, here
from staticgrad.ir.types import INT32, INT64, is_float, kind_of
from staticgrad.ops.movement.checked_index import checked, position
from staticgrad.ops.promotion import ArrayLike, as_tensor, widened

Reduction: TypeAlias = Literal["mean", "sum", "none"]


@widened
def cross_entropy(
    logits: Tensor,
    labels: Tensor,
    reduction: Reduction = "mean",
    *,
    weight: ArrayLike | None = None,
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Return ``-log softmax(logits)[label]``: (n, classes, ...) and (n, ...) -> scalar.

    `labels` are integers in 0..classes-1, or probabilities of the logits' shape.
    `weight` is a number for each class, (classes,). Integer labels that are
    `ignore_index` count nothing. `label_smoothing` (Szegedy et al., CVPR 2016) gives
    that share of each label to all classes alike. The mean of integer labels is that of
    what counts, weighted: ``sum(w[label] * loss) / sum(w[label])``, NaN where nothing
    does; that of probabilities is over the samples. Batches of a Trainer weigh by
    their samples.

    >>> import numpy as np, staticgrad as sg
    >>> x = sg.input("x", ("batch", 2))
    >>> y = sg.input("y", ("batch",), dtype="int64")
    >>> f = sg.compile(cross_entropy(x, y, weight=[1.0, 3.0], ignore_index=-1))
    >>> round(float(f(x=[[0, 0], [0, 100], [5, 5]], y=[0, 1, -1])), 4)  # log(2) / 4
    0.1733
    """
    name = "cross_entropy"
    x, y = _floats(name, logits), as_tensor(labels)
    axis = _class_axis(name, x)
    _require_share(name, label_smoothing)
    log_p = ops.log_softmax(x, axis=axis)  # (n, classes, ...)
    if not is_float(y.dtype):
        return _of_labels(
            name, log_p, y, axis, reduction, weight, ignore_index, label_smoothing
        )
    if y.ndim < x.ndim:
        raise _no_labels(name, y)
    _require_same_shape(name, x, y)
    if ignore_index is not None:
        raise GraphError(
            f"{name} requires integer labels to ignore some, got {y.type}; weigh "
            f"rows of reduction='none' instead{at(here())}"
        )
    p = y.astype(log_p.dtype)
    if label_smoothing:
        p = (1 - label_smoothing) * p + ops.divide(label_smoothing, x.shape[axis])
    if weight is not None:
        p = p * _along(name, weight, log_p, axis)
    return _reduced(name, -ops.sum(p * log_p, axis=axis), reduction)


@widened
def nll_loss(
    log_probabilities: Tensor,
    labels: Tensor,
    reduction: Reduction = "mean",
    *,
    weight: ArrayLike | None = None,
    ignore_index: int | None = None,
) -> Tensor:
    """Return ``-log_probabilities[label]``: (n, classes, ...) and integers (n, ...).

    `weight`, `ignore_index` and the mean are those of `cross_entropy`.

    >>> import staticgrad as sg
    >>> y = nll_loss(sg.log([[0.5, 0.5], [0.25, 0.75]]), [0, 1])
    >>> round(float(sg.compile(y, target="reference")()), 4)
    0.4904
    """
    name = "nll_loss"
    x = _floats(name, log_probabilities)
    axis = _class_axis(name, x)
    return _of_labels(
        name, x, as_tensor(labels), axis, reduction, weight, ignore_index, 0.0
    )


@widened
def mse_loss(x: Tensor, target: Tensor, reduction: Reduction = "mean") -> Tensor:
    """Return the squared error ``(x - target)^2`` of equal shapes.

    >>> import staticgrad as sg
    >>> y = mse_loss(sg.constant([1.0, 2.0]), sg.constant([0.0, 4.0]))
    >>> float(sg.compile(y, target="reference")())
    2.5
    """
    difference = _difference("mse_loss", x, target)
    return _reduced("mse_loss", difference * difference, reduction)


@widened
def l1_loss(x: Tensor, target: Tensor, reduction: Reduction = "mean") -> Tensor:
    """Return the absolute error ``|x - target|`` of equal shapes.

    >>> import staticgrad as sg
    >>> y = l1_loss(sg.constant([1.0, 2.0]), sg.constant([0.0, 4.0]))
    >>> float(sg.compile(y, target="reference")())
    1.5
    """
    return _reduced("l1_loss", abs(_difference("l1_loss", x, target)), reduction)


@widened
def huber_loss(
    x: Tensor, target: Tensor, reduction: Reduction = "mean", delta: float = 1.0
) -> Tensor:
    """Return the Huber loss: squared up to `delta`, linear beyond.

    With ``d = |x - target|`` it is ``d^2 / 2`` where ``d <= delta``, else ``delta (d -
    delta / 2)``. Huber, "Robust Estimation of a Location Parameter" (1964); the shapes
    are equal. PyTorch's ``smooth_l1_loss(beta)`` is ``huber_loss(delta=beta) / beta``.

    >>> import staticgrad as sg
    >>> x = sg.input("x", ("batch",))
    >>> sg.compile(huber_loss(x, sg.zeros_like(x), "none"))([0.5, -3.0])
    array([0.125, 2.5  ], dtype=float32)
    """
    if not delta > 0:
        raise GraphError(
            f"huber_loss requires delta > 0, got {delta}; 1.0 is usual{at(here())}"
        )
    d = _difference("huber_loss", x, target)
    far = delta * (abs(d) - delta / 2)
    loss = ops.where(ops.less_equal(abs(d), delta), d * d / 2, far)
    return _reduced("huber_loss", loss, reduction)


@widened
def binary_cross_entropy_with_logits(
    logits: Tensor,
    target: Tensor,
    reduction: Reduction = "mean",
    *,
    pos_weight: ArrayLike | None = None,
) -> Tensor:
    """Return ``-t log sigmoid(x) - (1 - t) log(1 - sigmoid(x))``, without overflow.

    Computed as ``(1 - t) x + softplus(-x)``; targets lie in 0..1, of any dtype. The
    first term is multiplied by `pos_weight`, which broadcasts to the logits' shape.

    >>> import staticgrad as sg
    >>> y = binary_cross_entropy_with_logits(sg.constant([0.0]), [1])
    >>> round(float(sg.compile(y, target="reference")()), 4)
    0.6931
    """
    name = "binary_cross_entropy_with_logits"
    x, t = _floats(name, logits), as_tensor(target)
    _require_same_shape(name, x, t)
    t = t if is_float(t.dtype) else t.astype(x.dtype)
    soft = ops.softplus(-x)
    if pos_weight is not None:
        factor = ops.broadcast_to(ops.astype(pos_weight, x.dtype), x.shape)
        soft = (1 + (factor - 1) * t) * soft
    return _reduced(name, (1 - t) * x + soft, reduction)


def _of_labels(
    name: str, log_p: Tensor, labels: Tensor, axis: int, reduction: Reduction,
    weight: ArrayLike | None, ignore_index: int | None, smoothing: float,
) -> Tensor:  # fmt: skip
    """Return the loss of integer labels, each with the weight of its class."""
    kept = None
    if ignore_index is not None and kind_of(labels.dtype) in "iu":
        kept = ops.not_equal(labels.astype(INT64), ignore_index)
        labels = ops.where(kept, labels, 0)
    hit = _hits(name, log_p, labels, axis)  # (n, classes, ...)
    classes = None if weight is None else _along(name, weight, log_p, axis)
    weighed = log_p if classes is None else log_p * classes
    loss = -ops.sum(ops.where(hit, weighed, 0.0), axis=axis)  # (n, ...)
    if smoothing:
        even = ops.sum(weighed, axis=axis) / log_p.shape[axis]
        loss = (1 - smoothing) * loss - smoothing * even
    if kept is not None:
        loss = ops.where(kept, loss, 0.0)
    if reduction != "mean" or (kept is None and classes is None):
        return _reduced(name, loss, reduction)
    share = ops.where(hit, 1.0 if classes is None else classes, 0.0)
    counted = ops.sum(share.astype(log_p.dtype), axis=axis)  # (n, ...)
    if kept is not None:
        counted = ops.where(kept, counted, 0.0)
    return ops.sum(loss) / ops.sum(counted)


def _hits(name: str, x: Tensor, labels: Tensor, axis: int) -> Tensor:
    """Return where the position along `axis` equals the label: a one-hot mask."""
    if kind_of(labels.dtype) not in "iu":
        raise _no_labels(name, labels)
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
    return ops.equal(position(x.shape, axis, INT32), place)


def _no_labels(name: str, labels: Tensor) -> DTypeError:
    return DTypeError(
        f"{name} requires integer labels, got {labels.type}; cast them with "
        f".astype('int64'){at(here())}"
    )


def _along(name: str, weight: ArrayLike, x: Tensor, axis: int) -> Tensor:
    """Return `weight`, a number for each class, along `axis` of `x`, in its dtype."""
    given = as_tensor(weight)
    if given.shape != (x.shape[axis],):
        raise ShapeError(
            f"{name} requires weights of shape [{x.shape[axis]}], got {given.type}; "
            f"give a number for each class{at(here())}"
        )
    shape = (*(1,) * axis, x.shape[axis], *(1,) * (x.ndim - axis - 1))
    return ops.broadcast_to(given.astype(x.dtype).reshape(shape), x.shape)


def _class_axis(name: str, logits: Tensor) -> int:
    if logits.ndim == 0:
        raise ShapeError(
            f"{name} requires an axis of classes, got {logits.type}; "
            f"give (n, classes) logits{at(here())}"
        )
    return min(logits.ndim - 1, 1)


def _floats(name: str, value: ArrayLike) -> Tensor:
    x = as_tensor(value)
    if is_float(x.dtype):
        return x
    raise DTypeError(
        f"{name} requires floats, got {x.type}; cast with .astype('float32')"
        f"{at(here())}"
    )


def _difference(name: str, x: ArrayLike, target: ArrayLike) -> Tensor:
    """Return ``x - target``, floats of equal shapes."""
    found, wanted = _floats(name, x), as_tensor(target)
    _require_same_shape(name, found, wanted)
    return found - wanted


def _require_share(name: str, smoothing: float) -> None:
    if not 0 <= smoothing <= 1:
        raise GraphError(
            f"{name} requires label_smoothing in 0..1, got {smoothing}; 0.1 is usual"
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


__all__ = [
    "binary_cross_entropy_with_logits", "cross_entropy", "huber_loss", "l1_loss",
    "mse_loss", "nll_loss",
]  # fmt: skip
