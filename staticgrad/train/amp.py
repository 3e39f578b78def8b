"""Mixed precision: 16-bit products, float32 parameters, a dynamic loss scale.

Micikevicius et al., "Mixed Precision Training" (ICLR 2018); the rule of the scale is
that of PyTorch's GradScaler, the division of operations that of its autocast:

* matrix products and convolutions run on 16-bit operands and give 16-bit results,
* what overflows or loses digits (exponentials, logarithms, powers, sums, norms, losses)
  runs in float32,
* everything else runs in the dtype of its arguments.

Parameters stay what they are, float32: they are cast where a product uses them, and the
gradient of the cast is float32 again, so the optimiser works on float32 master weights.
A policy holds while operations are built; derivatives follow from what was built, so
products of the backward pass are 16-bit, too.

On a CPU this saves memory, not time: products are computed in float32 anyway. Weakness:
a product that overflows float16 (65504) gives infinity, whatever the scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import Token
from types import TracebackType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from staticgrad import ops
from staticgrad.errors import GraphError
from staticgrad.ir.graph import PRECISION, Precision
from staticgrad.ir.node import State, Stored, Tensor
from staticgrad.ir.op import Op
from staticgrad.ir.source import at, here
from staticgrad.ir.types import FLOAT32, computed, is_float, is_half
from staticgrad.ops.casting import cast
from staticgrad.ops.leaves import dtype_of

Pair: TypeAlias = tuple[Stored, Tensor]


class Policy:
    """Mixed-precision policy: products in "float16", "bfloat16" or "float32".

    Use it around what is built, for a whole Graph, or for a Module wherever it is
    called; the innermost one holds.

    >>> import staticgrad as sg
    >>> with sg.Graph(seed=0, amp=sg.amp.Policy("bfloat16")):
    ...     x = sg.input("x", ("batch", 4))
    ...     y = sg.nn.Linear(4, 2)(x)
    ...     with sg.amp.Policy("float32"):
    ...         z = sg.nn.Linear(2, 2)(y)
    >>> print(y.type, z.type)
    bfloat16[batch, 2] float32[batch, 2]
    """

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self.dtype = dtype_of("Policy", dtype)
        if not is_half(self.dtype) and self.dtype != FLOAT32:
            raise GraphError(
                f"Policy requires float16, bfloat16 or float32, got {self.dtype}"
                f"{at(here())}"
            )
        self._tokens: list[Token[Precision | None]] = []

    def __repr__(self) -> str:
        return f"Policy({self.dtype.name!r})"

    def __enter__(self) -> Policy:
        self._tokens.append(PRECISION.set(self))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        PRECISION.reset(self._tokens.pop())

    def operands(self, op: Op, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """`inputs` in the dtypes in which `op` runs."""
        if op.amp == "half":
            return tuple(self._narrowed(x) for x in inputs)
        if op.amp == "float32":
            return tuple(cast(x, computed(x.dtype)) for x in inputs)
        return inputs

    def _narrowed(self, x: Tensor) -> Tensor:
        narrow = x.dtype == FLOAT32 or is_half(x.dtype)
        return cast(x, self.dtype) if narrow else x


class LossScale:
    """Factor by which a loss is multiplied, so that its gradients fit 16 bits.

    It starts at `init`, is multiplied by `growth` after `interval` finite steps in a
    row, and by `backoff` in each step whose gradients are not finite; such a step
    changes nothing else. For ``Trainer(loss_scale=)``, or in a loop of one's own:

    >>> import numpy as np, staticgrad as sg
    >>> w = sg.parameter(np.float32(3.0), name="w")
    >>> scale = sg.amp.LossScale(init=4.0)
    >>> scaled = sg.grad(w * w, w, cotangent=scale.value)
    >>> (dw,), finite = scale.unscale([scaled])
    >>> pairs = sg.optim.SGD(0.1).updates(dw, w)
    >>> pairs = [*sg.amp.where_finite(finite, pairs), *scale.updates(finite)]
    >>> step = sg.compile(dw, updates=pairs, mode="train")
    >>> float(step())
    6.0
    """

    def __init__(
        self,
        init: float = 65536.0,
        growth: float = 2.0,
        backoff: float = 0.5,
        interval: int = 2000,
    ) -> None:
        if not (init > 0 and growth >= 1 and 0 < backoff <= 1 and interval >= 1):
            raise GraphError(
                "LossScale requires init > 0, growth >= 1, 0 < backoff <= 1 and "
                f"interval >= 1, got {init}, {growth}, {backoff} and {interval}; "
                f"leave them out for PyTorch's{at(here())}"
            )
        self.growth, self.backoff = float(growth), float(backoff)
        self.interval = int(interval)
        self._scale: State = ops.state(np.float32(init), name="loss_scale")
        self._good: State = ops.state(np.int64(0), name="good_steps")

    def __repr__(self) -> str:
        return f"LossScale({float(self._scale.value)})"

    @property
    def value(self) -> State:
        """Scale, a float32 scalar; ``value.value`` is its current value."""
        return self._scale

    def unscale(self, grads: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
        """Divide the gradients by the scale, in float32, and test if all are finite."""
        found = [_wide(g) / self._scale for g in grads]
        return found, all_finite(found)

    def updates(self, finite: Tensor) -> list[Pair]:
        """Return the updates of the scale and its counter after a step."""
        good = self._good + 1
        full = good >= self.interval
        grown = self._scale * self.growth
        grown = ops.where(ops.isfinite(grown), grown, self._scale)
        kept = ops.where(full, grown, self._scale)
        scale = ops.where(finite, kept, self._scale * self.backoff)
        zero = ops.constant(np.int64(0))
        again = ops.where(ops.logical_and(finite, ops.logical_not(full)), good, zero)
        return [(self._scale, scale), (self._good, again)]


def _wide(g: Tensor) -> Tensor:
    return cast(g, computed(g.dtype))


def all_finite(tensors: Sequence[Tensor]) -> Tensor:
    """Whether no element of `tensors` is NaN or infinite, a bool scalar.

    >>> import numpy as np, staticgrad as sg
    >>> good, bad = sg.constant(np.ones(2)), sg.constant(np.array([0, np.inf]))
    >>> f = sg.compile([all_finite([good]), all_finite([good, bad])])
    >>> [bool(found) for found in f()]
    [True, False]
    """
    result: Tensor = ops.constant(np.True_)
    for tensor in tensors:
        if is_float(tensor.dtype):
            result = ops.logical_and(result, ops.all(ops.isfinite(tensor)))
    return result


def where_finite(finite: Tensor, pairs: Sequence[Pair]) -> list[Pair]:
    """Return `pairs` (leaf, new value) that change a leaf only if `finite`.

    >>> import numpy as np, staticgrad as sg
    >>> w = sg.parameter(np.float32(1.0), name="w")
    >>> never = sg.constant(np.False_)
    >>> step = sg.compile(w, updates=where_finite(never, [(w, w + 1)]), mode="train")
    >>> float(step()), float(step())
    (1.0, 1.0)
    """
    return [(leaf, ops.where(finite, new, leaf)) for leaf, new in pairs]


def set_policy(module: Any, policy: Policy | npt.DTypeLike | None) -> Any:
    """Return `module`, set to run under `policy` wherever it is called.

    A dtype stands for its Policy; None takes a policy away again.

    >>> import staticgrad as sg
    >>> with sg.Graph(seed=0):
    ...     layer = sg.amp.set_policy(sg.nn.Linear(4, 2), "float16")
    ...     y = layer(sg.input("x", ("batch", 4)))
    >>> print(y.type)
    float16[batch, 2]
    """
    if policy is not None and not isinstance(policy, Policy):
        policy = Policy(policy)
    module.__dict__["_policy"] = policy
    return module
