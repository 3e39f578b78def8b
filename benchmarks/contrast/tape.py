"""A define-by-run engine on NumPy, written for the comparison.

It is what the articles on autograd describe: every operation runs at once, allocates
its result, and writes down how to send a gradient back; ``backward`` walks that tape.
It is no straw man: gradients are accumulated in place, biases are summed with one call,
the softmax of cross entropy is one formula. A ledger counts what it does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.contrast.ledger import Ledger

Array = np.ndarray
Backward = Callable[[Array], Sequence[Array | None]]


class Value:
    """An array, and how to send its gradient to what it was made of."""

    __slots__ = ("backward", "data", "grad", "inputs")

    def __init__(
        self,
        data: Array,
        inputs: tuple[Value, ...] = (),
        backward: Backward | None = None,
    ) -> None:
        self.data = data
        self.inputs = inputs
        self.backward = backward
        self.grad: Array | None = None


class Tape:
    """The operations of the models, each run when it is called."""

    def __init__(self, ledger: Ledger | None = None) -> None:
        self.ledger = ledger

    def _ran(self, result: Array, *read: Array) -> Array:
        """Note one NumPy call that made `result`."""
        ledger = self.ledger
        if ledger is not None:
            ledger.ran(sum(array.nbytes for array in read), result.nbytes)
            if result.base is None:
                ledger.allocated(result, id(result), result.nbytes)
        return result

    def value(self, array: Array) -> Value:
        """A leaf."""
        return Value(array)

    def matmul(self, x: Value, w: Value) -> Value:
        """``x @ w``."""
        out = self._ran(x.data @ w.data, x.data, w.data)

        def backward(g: Array) -> Sequence[Array]:
            return (
                self._ran(g @ w.data.T, g, w.data),
                self._ran(x.data.T @ g, x.data, g),
            )

        return Value(out, (x, w), backward)

    def add(self, x: Value, y: Value) -> Value:
        """``x + y``, where y may be a row that is added to all."""
        out = self._ran(x.data + y.data, x.data, y.data)

        def backward(g: Array) -> Sequence[Array]:
            own = g if y.data.ndim == g.ndim else self._ran(g.sum(0), g)
            return g, own

        return Value(out, (x, y), backward)

    def sub(self, x: Value, y: Value) -> Value:
        """``x - y`` of one shape."""
        out = self._ran(x.data - y.data, x.data, y.data)
        return Value(out, (x, y), lambda g: (g, self._ran(-g, g)))

    def mul(self, x: Value, y: Value) -> Value:
        """``x * y`` of one shape."""
        out = self._ran(x.data * y.data, x.data, y.data)
        return Value(
            out,
            (x, y),
            lambda g: (
                self._ran(g * y.data, g, y.data),
                self._ran(g * x.data, g, x.data),
            ),
        )

    def tanh(self, x: Value) -> Value:
        """``tanh(x)``."""
        out = self._ran(np.tanh(x.data), x.data)

        def backward(g: Array) -> Sequence[Array]:
            square = self._ran(out * out, out)
            slope = self._ran(np.subtract(1, square, dtype=out.dtype), square)
            return (self._ran(g * slope, g, slope),)

        return Value(out, (x,), backward)

    def relu(self, x: Value) -> Value:
        """``max(x, 0)``."""
        out = self._ran(np.maximum(x.data, 0), x.data)

        def backward(g: Array) -> Sequence[Array]:
            mask = self._ran(x.data > 0, x.data)
            return (self._ran(g * mask, g, mask),)

        return Value(out, (x,), backward)

    def softplus(self, x: Value) -> Value:
        """``log(1 + exp(x))``."""
        out = self._ran(np.logaddexp(x.data, np.float32(0)), x.data)

        def backward(g: Array) -> Sequence[Array]:
            negative = self._ran(-x.data, x.data)
            grown = self._ran(np.exp(negative), negative)
            below = self._ran(grown + np.float32(1), grown)
            return (self._ran(g / below, g, below),)

        return Value(out, (x,), backward)

    def mean(self, x: Value) -> Value:
        """The mean of all elements."""
        out = self._ran(np.asarray(x.data.mean(dtype=x.data.dtype)), x.data)

        def backward(g: Array) -> Sequence[Array]:
            share = np.float32(g / x.data.size)
            return (self._ran(np.full(x.data.shape, share), g),)

        return Value(out, (x,), backward)

    def cross_entropy(self, logits: Value, labels: Value) -> Value:
        """The mean of -log softmax at the labels."""
        z, rows = logits.data, np.arange(len(labels.data))
        largest = self._ran(z.max(1, keepdims=True), z)
        shifted = self._ran(z - largest, z, largest)
        grown = self._ran(np.exp(shifted), shifted)
        total = self._ran(grown.sum(1, keepdims=True), grown)
        picked = self._ran(shifted[rows, labels.data], shifted)
        logs = self._ran(np.log(total[:, 0]), total)
        losses = self._ran(logs - picked, logs, picked)
        out = self._ran(np.asarray(losses.mean(dtype=z.dtype)), losses)

        def backward(g: Array) -> Sequence[Array | None]:
            soft = self._ran(grown / total, grown, total)
            soft[rows, labels.data] -= 1
            return self._ran(soft * np.float32(g / len(rows)), soft), None

        return Value(out, (logits, labels), backward)

    def scan(
        self, step: Callable[[Value, Value], Value], state: Value, steps: Array
    ) -> Value:
        """The last state of ``state = step(state, x)`` over the first axis."""
        for x in steps:
            state = step(state, Value(x))
        return state

    def gradients(self, loss: Value, wrt: Sequence[Value]) -> list[Array]:
        """The tape walked back."""
        order, seen, stack = [], set(), [loss]
        while stack:
            top = stack[-1]
            missing = [v for v in top.inputs if id(v) not in seen]
            if missing and id(top) not in seen:
                stack += missing
                continue
            stack.pop()
            if id(top) not in seen:
                seen.add(id(top))
                order.append(top)
        loss.grad = np.ones_like(loss.data)
        for value in reversed(order):
            if value.backward is not None and value.grad is not None:
                self._send(value)
        return [value.grad for value in wrt if value.grad is not None]

    def _send(self, value: Value) -> None:
        assert value.backward is not None
        for target, g in zip(value.inputs, value.backward(value.grad), strict=True):
            if g is None:
                continue
            if target.grad is None:
                target.grad = g
            else:
                target.grad = self._ran(target.grad + g, target.grad, g)

    def descend(self, parameter: Array, gradient: Array, rate: float) -> None:
        """``parameter -= rate * gradient``, in place."""
        move = self._ran(np.float32(rate) * gradient, gradient)
        parameter -= move
        if self.ledger is not None:
            self.ledger.ran(parameter.nbytes + move.nbytes, parameter.nbytes)
