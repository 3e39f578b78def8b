"""Evaluation of one operation with NumPy, as its record defines it.

float16 and bfloat16 are computed with in float32 and rounded once: the definition that
kernels keep, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from staticgrad.ir.op import Control, Op
from staticgrad.ir.types import TensorType, computed, is_half

Array = npt.NDArray[Any]


def compute(
    op: Op,
    arrays: Sequence[Array],
    attrs: Mapping[str, Any],
    types: Sequence[TensorType],
) -> tuple[Any, ...]:
    """Evaluate ``op.numpy(*arrays, **attrs)`` to arrays of the dtypes of `types`.

    >>> import staticgrad as sg
    >>> from staticgrad.ir.op import OPS
    >>> x = np.full(3000, 1.0, np.float16)
    >>> kind = sg.input("x", (), "float16").type
    >>> total = compute(OPS["reduce_sum"], [x], {"axes": (0,)}, [kind])
    >>> float(total[0])
    3000.0
    """
    half = any(is_half(a.dtype) for a in arrays) or any(is_half(t.dtype) for t in types)
    if not half or isinstance(op.code, Control):
        found = op.numpy(*arrays, **attrs)
        return (found,) if op.outputs == 1 else tuple(found)
    wide = [a.astype(computed(a.dtype), copy=False) for a in arrays]
    single = {name: _computed(value) for name, value in attrs.items()}
    if all(a is b for a, b in zip(wide, arrays, strict=True)):
        single = dict(attrs)  # nothing was widened: a conversion rounds once
    found = op.numpy(*wide, **single)
    results = (found,) if op.outputs == 1 else tuple(found)
    return tuple(
        np.asarray(r).astype(t.dtype, copy=False)
        for r, t in zip(results, types, strict=True)
    )


def _computed(value: Any) -> Any:
    return computed(value) if isinstance(value, np.dtype) else value
