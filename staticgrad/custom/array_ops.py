"""custom_op(kind="array"): the user's functions of arrays, called from native code.

Each application is a node of an op of its own with the code Call (callback_ops.py); its
function is the user's behind an adapter (array_adapters.py). `backward` is another such
node, or is made of graph operations.

Weakness: forward mode transposes `backward`, which has to be made of graph operations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from staticgrad.custom.array_adapters import Adapted, Adapter
from staticgrad.custom.backward_results import checked_cotangents
from staticgrad.custom.callback_ops import attributes, call_op, no_derivative, several
from staticgrad.custom.native_functions import Settings, is_native, native
from staticgrad.differentiate.reverse import zeros
from staticgrad.errors import GraphError
from staticgrad.ir.graph import apply_multi
from staticgrad.ir.node import Tensor
from staticgrad.ir.source import at, here
from staticgrad.ir.types import TensorType
from staticgrad.ops.leaves import as_shape, dtype_of
from staticgrad.ops.promotion import as_tensor
from staticgrad.vectorize.mapping import vmap

Pull = Callable[..., list[Tensor | None]]


@dataclass(frozen=True, slots=True)
class Results:
    """Declared results of a forward function: values, or functions of the inputs."""

    shape: Any
    dtype: Any
    saved: Any

    def of(self, name: str, xs: Sequence[Tensor]) -> tuple[list[TensorType], int]:
        """Return the types of all results, and how many are not saved."""
        shapes = [x.shape for x in xs]
        shape = self.shape(*shapes) if callable(self.shape) else self.shape
        dtype = self.dtype
        if callable(dtype) and not isinstance(dtype, type):
            dtype = dtype(*(x.dtype for x in xs))
        if xs and shape is None:
            shape = xs[0].shape
        if xs and dtype is None:
            dtype = xs[0].dtype
        if shape is None or dtype is None:
            raise GraphError(
                f"{name} requires shape= and dtype= where there is no input, got none"
                f"{at(here())}"
            )
        pairs = several(name, shape, dtype)
        count = len(pairs)
        saved = self.saved(*shapes) if callable(self.saved) else self.saved
        return [
            TensorType(as_shape(name, s, names=True), dtype_of(name, d))
            for s, d in (*pairs, *saved)
        ], count


class ArrayOp:
    """Operation `name`, made of functions of arrays."""

    def __init__(
        self, name: str, forward: Callable[..., Any], backward: Any, results: Results
    ) -> None:
        self.name = name
        self.forward = native(name, "forward", forward)
        self.results = results
        compiled = is_native(backward)
        self.backward = native(name, "backward", backward) if compiled else None
        self.graph: Callable[..., Any] | None = None if compiled else backward

    def __call__(self, *args: Any, **settings: Any) -> Any:
        """Return the result for array_like arguments, or a tuple of results."""
        xs = [as_tensor(arg) for arg in args]
        types, count = self.results.of(self.name, xs)
        given = tuple(x.type for x in xs)
        names = tuple(f"x{n}" for n in range(len(xs)))
        adapter = Adapter(self.forward, given, names, tuple(types), settings)
        outputs = apply_multi(
            call_op(self.name, len(types), self._pull(given, types, count, settings)),
            *xs,
            **attributes(adapter.adapted().function, types),
        )
        is_list = count > 1 or isinstance(self.results.shape, list)
        return tuple(outputs[:count]) if is_list else outputs[0]

    def _pull(
        self, xs: Sequence[TensorType], types: Sequence[TensorType], count: int,
        settings: Settings,
    ) -> Callable[..., Any] | None:  # fmt: skip
        """Return a node's vjp, for inputs of the types `xs` and results of `types`."""
        if self.backward is None and self.graph is None:
            return None
        if self.graph is not None:
            pulled: Pull = partial(self._by_graph, count, len(xs), settings)
        else:
            ready = self._adapted(xs, types, count, settings)
            pulled = partial(self._by_call, ready, len(xs))

        def vjp(g: Any, y: Any, *xs: Tensor, lead: int, **_: Any) -> Any:
            gs, ys = (v if isinstance(v, tuple) else (v,) for v in (g, y))
            seeds = [
                zeros(y) if g is None else g
                for y, g in zip(ys[:count], gs[:count], strict=True)
            ]
            return pulled(lead, (*seeds, *ys[:count], *xs, *ys[count:]))

        return vjp

    def _adapted(
        self, xs: Sequence[TensorType], types: Sequence[TensorType], count: int,
        settings: Settings,
    ) -> Adapted:  # fmt: skip
        """Return backward as a function of g, y (tuples if several), xs and saved."""
        assert self.backward is not None
        given = (*types[:count], *types[:count], *xs, *types[count:])
        names = [f"x{n}" for n in range(len(given))]
        pair = [names[:count], names[count : 2 * count]]
        tuples = count > 1 or isinstance(self.results.shape, list)
        heads = [f"({', '.join(p)},)" if tuples else p[0] for p in pair]
        arguments = (*heads, *names[2 * count :])
        adapter = Adapter(self.backward, given, arguments, tuple(xs), settings, True)
        return adapter.adapted()

    def _by_call(
        self, ready: Adapted, inputs: int, lead: int, arguments: Sequence[Tensor]
    ) -> list[Tensor | None]:
        if not ready.places:
            return [None] * inputs
        pull = no_derivative(f"{self.name} requires a backward of graph operations")
        op = call_op(f"{self.name}_backward", len(ready.types), pull)
        found = apply_multi(
            op, *arguments, **attributes(ready.function, ready.types, lead)
        )
        by_place = dict(zip(ready.places, found, strict=True))
        return [by_place.get(place) for place in range(inputs)]

    def _by_graph(
        self, count: int, inputs: int, settings: Settings, lead: int,
        arguments: Sequence[Tensor],
    ) -> list[Tensor | None]:  # fmt: skip
        assert self.graph is not None
        backward, given = self.graph, list[bool]()
        tuples = count > 1 or isinstance(self.results.shape, list)

        def one(*flat: Tensor) -> list[Tensor]:
            g, y, xs = flat[:count], flat[count : 2 * count], flat[2 * count :]
            pair: tuple[Any, ...] = (g, y) if tuples else (g[0], y[0])
            found = backward(*pair, *xs, **settings)
            results = checked_cotangents(self.name, xs[:inputs], found)
            given[:] = [r is not None for r in results]
            return [r for r in results if r is not None]

        mapped: Callable[..., Any] = one
        for _ in range(lead):
            mapped = vmap(mapped)
        results = iter(mapped(*arguments))
        return [next(results) if there else None for there in given]
