"""Ops that call a function of the user's on whole arrays, and pure_callback.

Each has an op of its own, made by ``call_op``, which stands in no table: the user gave
it its name and derivative. Under vmap the function is called for one example after the
other, by several threads unless it is Python's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from staticgrad.compiler.codegen.fingerprint import fingerprint
from staticgrad.compiler.runtime.python_callbacks import Thunk
from staticgrad.errors import DTypeError, GraphError, ShapeError
from staticgrad.ir.foreign import Foreign
from staticgrad.ir.graph import apply_multi
from staticgrad.ir.node import Tensor
from staticgrad.ir.op import OPS, Call, Op
from staticgrad.ir.size import Dim, Shape
from staticgrad.ir.source import at, here
from staticgrad.ir.types import DType, TensorType
from staticgrad.ops.leaves import as_shape, dtype_of
from staticgrad.ops.promotion import as_tensor

Vjp = Callable[..., Any] | None


def call_op(name: str, outputs: int, vjp: Vjp) -> Op:
    """Return an op that calls ``attrs["function"]``; `vjp` is as in any op's record."""

    def batch(n: Dim, *xs: Tensor, lead: int, **attrs: Any) -> Any:
        found = apply_multi(op, *xs, lead=lead + 1, **attrs)
        return found[0] if outputs == 1 else found

    op = Op(
        name=name if name not in OPS else f"own_{name}",
        shape=_shapes,
        dtype=lambda *_, dtypes, **__: dtypes[0] if len(dtypes) == 1 else dtypes,
        vjp=vjp,
        code=Call(),
        numpy=_called,
        samples=tuple,
        bad=tuple,
        outputs=outputs,
        batch=batch,
    )
    return op


def attributes(
    function: Foreign, types: Sequence[TensorType], lead: int = 0
) -> dict[str, Any]:
    """Return the attributes of a node calling `function`, which fills `types`."""
    return {
        "function": function,
        "shapes": tuple(t.shape for t in types),
        "dtypes": tuple(t.dtype for t in types),
        "lead": lead,
    }


def no_derivative(text: str) -> Callable[..., Any]:
    """Return a vjp that raises GraphError with `text`."""

    def vjp(*_: Any, **__: Any) -> Any:
        raise GraphError(
            f"{text} where it is differentiated, got one that cannot be; give "
            f"custom_op a backward made of graph operations{at(here())}"
        )

    return vjp


def several(name: str, shape: Any, dtype: Any) -> list[tuple[Any, Any]]:
    """Return (shape, dtype) of each result: a list of shapes stands for several."""
    shapes = list(shape) if isinstance(shape, list) else [shape]
    dtypes = list(dtype) if isinstance(dtype, list) else [dtype] * len(shapes)
    if len(dtypes) != len(shapes) or not shapes:
        raise GraphError(
            f"{name} requires a dtype for each of {len(shapes)} results, got "
            f"{len(dtypes)}{at(here())}"
        )
    return list(zip(shapes, dtypes, strict=True))


def pure_callback(
    fn: Callable[..., Any], shape: Any, dtype: Any, *args: Any
) -> Tensor | tuple[Tensor, ...]:
    """Return the result of a Python function, which is called each time the graph runs.

    ``fn(*arrays)`` gets read-only NumPy arrays, which it may not keep, and returns an
    array of `shape` and `dtype`, or, where `shape` is a list of shapes, as many arrays.
    It must depend on nothing else: it is called as often as the compiler likes. Each
    call takes the GIL, so this is a last resort; ``explain()`` shows its cost. What it
    raises stops the run before anything is written, and is raised by the call.

    It has no derivative: wrap it in ``custom_op`` to give it one. Raises ShapeError or
    DTypeError, when it runs, for a result that is not as it was said to be.

    >>> import numpy as np, staticgrad as sg
    >>> x = sg.parameter([3.0, 1.0, 2.0])
    >>> y = sg.pure_callback(np.sort, x.shape, x.dtype, x)
    >>> sg.compile(y * 10)()
    array([10., 20., 30.], dtype=float32)
    """
    if not callable(fn):
        raise GraphError(
            f"pure_callback requires a function, got {fn!r}; call "
            f"pure_callback(fn, shape, dtype, *args){at(here())}"
        )
    xs = [as_tensor(arg) for arg in args]
    types = [
        TensorType(as_shape("pure_callback", s, names=True), dtype_of("dtype", d))
        for s, d in several("pure_callback", shape, dtype)
    ]
    name = getattr(fn, "__name__", "callback")
    name = name if name.isidentifier() else "callback"
    function = python_function(name, fn, [x.type for x in xs], types)
    text = f"{name} requires a derivative"
    op = call_op(name, len(types), no_derivative(text))
    outputs = apply_multi(op, *xs, **attributes(function, types))
    return outputs if isinstance(shape, list) else outputs[0]


def python_function(
    name: str,
    fn: Callable[..., Any],
    reads: Sequence[TensorType],
    writes: Sequence[TensorType],
) -> Foreign:
    """Wrap `fn`, which returns arrays of the types `writes`, for calls by kernels."""

    def fill(*arrays: Any) -> None:
        given, wanted = arrays[: len(reads)], arrays[len(reads) :]
        results = fn(*given)
        found = results if isinstance(results, tuple) else (results,)
        if len(found) != len(wanted):
            raise GraphError(
                f"{name} requires {len(wanted)} results, got {len(found)}; "
                f"return a tuple of them"
            )
        for target, result in zip(wanted, found, strict=True):
            _fill(name, target, np.asarray(result))

    kinds = [(len(t.shape), t.dtype) for t in (*reads, *writes)]
    thunk = Thunk(fill, kinds, len(writes))
    # two callbacks share kernels, never an address
    digest = fingerprint(len(reads), str(kinds))
    return Foreign("python", digest + str(thunk.address), fill, thunk)


def _fill(name: str, target: Any, result: Any) -> None:
    if result.shape != target.shape:
        raise ShapeError(
            f"{name} requires a result of shape {target.shape}, got {result.shape}; "
            f"say so in shape="
        )
    if not np.can_cast(result.dtype, target.dtype, "same_kind"):
        raise DTypeError(
            f"{name} requires a result of dtype {target.dtype}, got {result.dtype}; "
            f"say so in dtype="
        )
    target[...] = result


def _shapes(*types: TensorType, shapes: Sequence[Shape], lead: int, **_: Any) -> Any:
    leading = types[0].shape[:lead] if types else ()
    if any(t.shape[:lead] != leading for t in types):
        raise ShapeError("equal leading axes")
    found = tuple((*leading, *shape) for shape in shapes)
    return found[0] if len(found) == 1 else found


def _called(
    *arrays: Any, function: Foreign, shapes: Sequence[tuple[int, ...]],
    dtypes: Sequence[DType], lead: int,
) -> Any:  # fmt: skip
    """Return the function over the arrays at each position of the leading axes."""
    leading = arrays[0].shape[:lead] if arrays else ()
    pairs = zip(shapes, dtypes, strict=True)
    results = tuple(np.zeros((*leading, *shape), dtype) for shape, dtype in pairs)
    reads = [np.ascontiguousarray(a).reshape(a.shape) for a in arrays]
    for array in reads:
        array.flags.writeable = False
    for position, place in enumerate(np.ndindex(leading)):
        given = [a[(*place, ...)] for a in reads]
        function(*given, *(r[(*place, ...)] for r in results), position=position)
    return results[0] if len(results) == 1 else results
