"""Users' scalar functions in kernels for a GPU, without a GPU.

Numba's CUDA compiler takes the Python of a function that was compiled for the cpu. It
asks for a device where a kernel calls it, for which `compiling_for` stands in. A call
gives a pair: the result, and whether something was raised, which Numba itself would
drop: a kernel that is not compiled for debugging ends in silence.

Division by zero does not raise on a GPU: Numba compiles it as NumPy means it there.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from staticgrad.compiler.codegen.llvm.intrinsics import taking
from staticgrad.ir.foreign import Foreign

_one_at_a_time = threading.RLock()


@contextmanager
def compiling_for(dispatcher: Any, capability: tuple[int, int]) -> Iterator[None]:
    """Context in which Numba's `dispatcher` finds a device of this capability."""
    with _one_at_a_time:
        before = dispatcher.get_current_device
        device = SimpleNamespace(compute_capability=capability)
        dispatcher.get_current_device = lambda: device
        try:
            yield
        finally:
            dispatcher.get_current_device = before


def calls(functions: tuple[Foreign, ...], cuda: Any, extending: Any) -> dict[str, Any]:
    """Return the functions bound to the symbols of `functions` in kernel source."""
    return {f.symbol: _call(f.function, cuda, extending) for f in functions}


def _call(function: Any, cuda: Any, extending: Any) -> Any:
    types = cuda.types

    def call(_typing: Any, *given: Any) -> Any:
        kinds = tuple(types.unliteral(kind) for kind in given)
        compiled = cuda.jit(device=True)(function.py_func).compile_device(kinds)
        result, described = compiled.signature.return_type, compiled.fndesc
        pair = types.Tuple((result, types.boolean))

        def generate(context: Any, b: Any, _signature: Any, args: Any) -> Any:
            context.active_code_library.add_linking_library(compiled.library)
            callee = described.declare_function(b.module)
            status, value = described.call_conv.call_function(
                b, callee, result, described.argtypes, args
            )
            return context.make_tuple(b, pair, (value, status.is_error))

        return pair(*kinds), generate

    count = function.py_func.__code__.co_argcount
    return taking(count, call, extending.intrinsic)
