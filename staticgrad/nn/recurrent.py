"""Recurrent layers: RNN, LSTM and GRU, and their cells.

Names, shapes and order of gates are PyTorch's, so parameters can be exchanged:
``weight_ih_l0`` (gates * hidden, inputs), ``weight_hh_l0`` (gates * hidden, hidden),
``bias_ih_l0``, ``bias_hh_l0``; ``_reverse`` for the second direction. The gates are
input, forget, cell, output (LSTM) and reset, update, new (GRU).

The inputs of all steps are projected in one product before the scan; its steps multiply
the state only.

Sources: Hochreiter and Schmidhuber, "Long short-term memory" (1997); Cho et al.,
"Learning phrase representations using RNN encoder-decoder" (2014).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from staticgrad import ops
from staticgrad.control import scan
from staticgrad.errors import GraphError, ShapeError
from staticgrad.ir.node import Parameter, Tensor
from staticgrad.ir.size import Dim
from staticgrad.ir.source import at, here
from staticgrad.nn import initial_values
from staticgrad.nn.layers import Dropout
from staticgrad.nn.module import Module
from staticgrad.ops.promotion import as_tensor

State: TypeAlias = tuple[Tensor, ...]
Step: TypeAlias = Callable[[State, Tensor, Tensor, "Tensor | None"], State]


def _tanh_step(state: State, x: Tensor, weight: Tensor, bias: Tensor | None) -> State:
    return (ops.tanh(_gates(state[0], x, weight, bias)),)


def _relu_step(state: State, x: Tensor, weight: Tensor, bias: Tensor | None) -> State:
    return (ops.relu(_gates(state[0], x, weight, bias)),)


def _lstm_step(state: State, x: Tensor, weight: Tensor, bias: Tensor | None) -> State:
    """Compute ``c' = f c + i g``, ``h' = o tanh(c')``."""
    h, c = state
    i, f, g, o = ops.split(_gates(h, x, weight, bias), 4, axis=-1)  # (batch, hidden)
    new = ops.sigmoid(f) * c + ops.sigmoid(i) * ops.tanh(g)
    return ops.sigmoid(o) * ops.tanh(new), new


def _gru_step(state: State, x: Tensor, weight: Tensor, bias: Tensor | None) -> State:
    """Compute ``h' = (1 - z) n + z h``, ``n = tanh(x_n + r (W h + b))``."""
    (h,) = state
    x_r, x_z, x_n = ops.split(x, 3, axis=-1)  # (batch, hidden) each
    h_r, h_z, h_n = ops.split(_product(h, weight, bias), 3, axis=-1)
    reset, update = ops.sigmoid(x_r + h_r), ops.sigmoid(x_z + h_z)
    new = ops.tanh(x_n + reset * h_n)
    return (new + update * (h - new),)


def _gates(h: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x + _product(h, weight, bias)


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return ``x @ weight + bias``; the weight is (inputs, outputs)."""
    y = ops.matmul(x, weight)
    return y if bias is None else ops.add(y, bias)


STEPS: dict[str, tuple[Step, int, int]] = {
    "tanh": (_tanh_step, 1, 1),
    "relu": (_relu_step, 1, 1),
    "lstm": (_lstm_step, 4, 2),
    "gru": (_gru_step, 3, 1),
}
"""One step, the number of gates, and that of states."""


class _Cell(Module):
    """One step of a recurrent layer: x and h, or None for zeros, give the new h."""

    _kind = "tanh"

    def __init__(self, inputs: int, hidden: int, bias: bool = True) -> None:
        _require_sizes(type(self).__name__, inputs, hidden)
        gates = STEPS[self._kind][1] * hidden
        bound = 1 / math.sqrt(hidden)

        def start(name: str, *shape: int) -> Parameter:
            return ops.parameter(initial_values.uniform(shape, bound), name=name)

        self.weight_ih: Parameter = start("weight_ih", gates, inputs)
        self.weight_hh: Parameter = start("weight_hh", gates, hidden)
        self.bias_ih: Parameter | None = start("bias_ih", gates) if bias else None
        self.bias_hh: Parameter | None = start("bias_hh", gates) if bias else None

    def _next(self, x: Tensor, state: State | None) -> State:
        x = as_tensor(x)
        step, _, states = STEPS[self._kind]
        hidden = self.weight_hh.shape[1]
        if state is None:
            zero = ops.zeros((*x.shape[:-1], hidden), dtype=x.dtype)
            state = (zero,) * states
        flat = tuple(_at_least_2d(part) for part in (x, *state))  # (batch, ...)
        projected = _product(flat[0], ops.transpose(self.weight_ih), self.bias_ih)
        new = step(flat[1:], projected, ops.transpose(self.weight_hh), self.bias_hh)
        return tuple(ops.reshape(part, (*x.shape[:-1], hidden)) for part in new)

    def forward(self, x: Tensor, h: Tensor | None = None) -> Tensor:
        """The next state."""
        return self._next(x, None if h is None else (h,))[0]


def _at_least_2d(x: Tensor) -> Tensor:
    return ops.reshape(x, (1, *x.shape)) if x.ndim == 1 else x


class RNNCell(_Cell):
    """Elman cell: ``h' = tanh(x @ weight_ih.T + bias_ih + h @ weight_hh.T + bias_hh)``.

    Called with x (batch, inputs) or (inputs,), and h or None for zeros; gives the new
    h. `nonlinearity` is "tanh" or "relu".

    """

    def __init__(
        self, inputs: int, hidden: int, bias: bool = True, nonlinearity: str = "tanh"
    ) -> None:
        self._kind = _nonlinearity("RNNCell", nonlinearity)
        super().__init__(inputs, hidden, bias)


class LSTMCell(_Cell):
    """LSTM cell: one step from x and (h, c), or None for zeros, to the new (h, c)."""

    _kind = "lstm"

    def forward(  # type: ignore[override]
        self, x: Tensor, state: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the states after one step."""
        h, c = self._next(x, state)
        return h, c


class GRUCell(_Cell):
    """GRU cell: one step from x and h, or None for zeros, to the new h.

    >>> import staticgrad as sg
    >>> with sg.Graph(seed=0):
    ...     layer = sg.nn.GRUCell(3, 4)
    >>> print(layer(sg.input("x", ("batch", 3))).type)
    float32[batch, 4]
    """

    _kind = "gru"


class _Recurrent(Module):
    """Recurrent layers over a sequence, in one or two directions."""

    _kind = "tanh"

    def __init__(
        self, inputs: int, hidden: int, num_layers: int = 1, bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False,
    ) -> None:  # fmt: skip
        _require_sizes(type(self).__name__, inputs, hidden, num_layers)
        self._hidden = hidden
        self._layers = num_layers
        self._batch_first = batch_first
        self._suffixes = ("", "_reverse") if bidirectional else ("",)
        self._dropout = Dropout(dropout) if dropout else None
        gates = STEPS[self._kind][1] * hidden
        bound = 1 / math.sqrt(hidden)
        for layer in range(num_layers):
            width = inputs if layer == 0 else hidden * len(self._suffixes)
            for suffix in self._suffixes:
                shapes: list[tuple[str, tuple[int, ...]]] = [
                    ("weight_ih", (gates, width)),
                    ("weight_hh", (gates, hidden)),
                ]
                if bias:
                    shapes += [("bias_ih", (gates,)), ("bias_hh", (gates,))]
                for name, shape in shapes:
                    path = f"{name}_l{layer}{suffix}"
                    start = initial_values.uniform(shape, bound)
                    setattr(self, path, ops.parameter(start, name=path))

    def forward(self, x: Tensor, h: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """All states of the last layer, and the last ones of every layer."""
        y, (last,) = self._run(x, None if h is None else (h,))
        return y, last

    def _run(self, x: Tensor, state: State | None) -> tuple[Tensor, State]:
        name, x = type(self).__name__, as_tensor(x)
        if x.ndim not in (2, 3):
            raise ShapeError(
                f"{name} requires (time, batch, inputs) or (time, inputs), got "
                f"{x.type}; reshape it{at(here())}"
            )
        single = x.ndim == 2
        turned = self._batch_first and not single
        x = ops.reshape(x, (x.shape[0], 1, x.shape[1])) if single else x
        x = ops.swapaxes(x, 0, 1) if turned else x  # (time, batch, inputs)
        count = STEPS[self._kind][2]
        starts = self._starts(x, state, single, count)  # (layer and way, batch, hidden)
        last: list[State] = []
        for layer in range(self._layers):
            ways = []
            for way, suffix in enumerate(self._suffixes):
                number = layer * len(self._suffixes) + way
                own = tuple(part[number] for part in starts)
                end, ys = self._one_way(x, own, f"_l{layer}{suffix}")
                last.append(end)
                ways.append(ys)
            x = ways[0] if len(ways) == 1 else ops.concatenate(ways, axis=-1)
            if self._dropout is not None and layer < self._layers - 1:
                x = self._dropout(x)
        ends = tuple(ops.stack([end[k] for end in last], axis=0) for k in range(count))
        if single:
            x = ops.reshape(x, (x.shape[0], x.shape[2]))
            ends = tuple(ops.reshape(e, (e.shape[0], e.shape[2])) for e in ends)
        return (ops.swapaxes(x, 0, 1) if turned else x), ends

    def _starts(
        self, x: Tensor, state: State | None, single: bool, count: int
    ) -> Sequence[Tensor]:
        number = self._layers * len(self._suffixes)
        shape: tuple[Dim, ...] = (number, x.shape[1], self._hidden)
        if state is None:
            return [ops.zeros(shape, dtype=x.dtype)] * count
        wanted = (number, self._hidden) if single else shape
        state = tuple(as_tensor(part) for part in state)
        for part in state:
            if part.shape != wanted:
                raise ShapeError(
                    f"{type(self).__name__} requires states of shape "
                    f"({', '.join(map(str, wanted))}), got {part.type}; one for each "
                    f"layer and direction{at(here())}"
                )
        return [ops.reshape(part, shape) for part in state]

    def _one_way(self, x: Tensor, start: State, suffix: str) -> tuple[State, Tensor]:
        """Run one layer in one direction: the last state, and h of all steps."""
        step, _, _ = STEPS[self._kind]
        own = self.__dict__
        weight = ops.transpose(own[f"weight_hh{suffix}"])
        bias_ih, bias_hh = own.get(f"bias_ih{suffix}"), own.get(f"bias_hh{suffix}")
        if self._kind != "gru" and bias_ih is not None:
            bias_ih, bias_hh = bias_ih + bias_hh, None
        projected = _product(x, ops.transpose(own[f"weight_ih{suffix}"]), bias_ih)

        def body(carry: State, row: Tensor) -> tuple[State, Tensor]:
            new = step(carry, row, weight, bias_hh)
            return new, new[0]

        reverse = suffix.endswith("_reverse")
        return scan(body, start, projected, reverse=reverse)


class RNN(_Recurrent):
    """``h = tanh(x W_ih' + b_ih + h W_hh' + b_hh)`` along the first axis.

    Called with x (time, batch, inputs), or (batch, time, inputs) with `batch_first`,
    or (time, inputs); and the first state (layers * directions, batch, hidden), or
    None for zeros. Gives (y, h): the states of the last layer in all steps, with those
    of both directions side by side, and the last state of every layer.

    `nonlinearity` is "tanh" or "relu"; `dropout` acts between layers, in train mode.

    >>> import staticgrad as sg
    >>> with sg.Graph(seed=0):
    ...     y, h = sg.nn.RNN(3, 4)(sg.input("x", ("time", "batch", 3)))
    >>> print(y.type, h.type)
    float32[time, batch, 4] float32[1, batch, 4]
    """

    def __init__(
        self, inputs: int, hidden: int, num_layers: int = 1, nonlinearity: str = "tanh",
        bias: bool = True, batch_first: bool = False, dropout: float = 0.0,
        bidirectional: bool = False,
    ) -> None:  # fmt: skip
        self._kind = _nonlinearity("RNN", nonlinearity)
        super().__init__(
            inputs, hidden, num_layers, bias, batch_first, dropout, bidirectional
        )


class LSTM(_Recurrent):
    """Long short-term memory; called as RNN is, with (h, c) for the state.

    >>> import staticgrad as sg
    >>> with sg.Graph(seed=0):
    ...     y, (h, c) = sg.nn.LSTM(3, 4)(sg.input("x", ("time", "batch", 3)))
    >>> print(y.type, c.type)
    float32[time, batch, 4] float32[1, batch, 4]
    """

    _kind = "lstm"

    def forward(  # type: ignore[override]
        self, x: Tensor, state: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return all h of the last layer, and the last h and c of every layer."""
        y, (h, c) = self._run(x, state)
        return y, (h, c)


class GRU(_Recurrent):
    """Gated recurrent unit; called as RNN is.

    >>> import staticgrad as sg
    >>> with sg.Graph(seed=0):
    ...     y, h = sg.nn.GRU(3, 4)(sg.input("x", ("time", "batch", 3)))
    >>> print(y.type, h.type)
    float32[time, batch, 4] float32[1, batch, 4]
    """

    _kind = "gru"


def _require_sizes(name: str, *sizes: Any) -> None:
    if any(size < 1 for size in sizes):
        got = ", ".join(map(str, sizes))
        raise ShapeError(f"{name} requires sizes of at least 1, got {got}{at(here())}")


def _nonlinearity(name: str, nonlinearity: str) -> str:
    if nonlinearity not in ("tanh", "relu"):
        raise GraphError(
            f"{name} requires nonlinearity 'tanh' or 'relu', got {nonlinearity!r}"
            f"{at(here())}"
        )
    return nonlinearity


__all__ = ["GRU", "LSTM", "RNN", "GRUCell", "LSTMCell", "RNNCell"]
