"""Matrix products by cuBLAS, through ctypes, on our stream and in our workspace.

cuBLAS counts columns first: the row-major ``C = A B`` is its ``C' = B' A'``. With a
workspace of its own it would allocate one for every capture. TF32 is not used.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable
from typing import Any

from staticgrad.compiler.cuda.device import Product
from staticgrad.errors import DeviceError
from staticgrad.ir.types import FLOAT64

WORKSPACE_BYTES = 32 << 20  # what NVIDIA advises for Hopper
LIBRARY = "libcublas.so.13"

_REAL = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}  # CUDA_R_...
_COMPUTE = {True: 70, False: 68}  # CUBLAS_COMPUTE_64F, _32F
_DEFAULT = -1  # CUBLAS_GEMM_DEFAULT


class Blas:
    """Handle of cuBLAS."""

    def __init__(
        self, stream: ctypes.c_void_p, allocate: Callable[[int], int],
        path: str | None = None,
    ) -> None:  # fmt: skip
        self._library = _loaded(path)
        self._handle = ctypes.c_void_p()
        self._call("cublasCreate_v2", ctypes.byref(self._handle), first=False)
        self._call("cublasSetStream_v2", stream)
        workspace = allocate(WORKSPACE_BYTES)
        size = ctypes.c_size_t(WORKSPACE_BYTES)
        # After the stream: setting that takes the workspace away.
        self._call("cublasSetWorkspace_v2", ctypes.c_void_p(workspace), size)

    def _call(self, name: str, *arguments: Any, first: bool = True) -> None:
        given = (self._handle, *arguments) if first else arguments
        code = getattr(self._library, name)(*given)
        if code:
            raise DeviceError(
                f"target 'cuda' requires cuBLAS, got its status {code} of {name}; "
                "use target='cpu'"
            )

    def multiply(self, product: Product, a: int, b: int, c: int) -> None:
        """Compute ``C = alpha A B + beta C``."""
        kind = product.dtype.name
        double = product.dtype == FLOAT64
        scalar = ctypes.c_double if double else ctypes.c_float
        real, pointer, whole = _REAL[kind], ctypes.c_void_p, ctypes.c_int
        alpha, beta = scalar(product.alpha), scalar(product.beta)
        (transposed_a, transposed_b), (lda, ldb, ldc) = product.transposed, product.ld
        step_a, step_b, step_c = map(ctypes.c_longlong, product.batch_strides)
        sizes = (
            whole(transposed_b),
            whole(transposed_a),
            product.n,
            product.m,
            product.k,
        )
        many = product.batch > 1
        left = (pointer(b), real, _row(ldb, product.n, product.k, transposed_b))
        right = (pointer(a), real, _row(lda, product.k, product.m, transposed_a))
        out = (pointer(c), real, max(ldc, product.n))
        arguments: list[Any] = [*sizes, ctypes.byref(alpha)]
        arguments += [*left, step_b] if many else left
        arguments += [*right, step_a] if many else right
        arguments += [ctypes.byref(beta), *out]
        arguments += [step_c, product.batch] if many else []
        name = "cublasGemmStridedBatchedEx" if many else "cublasGemmEx"
        self._call(name, *arguments, _COMPUTE[double], _DEFAULT)


def _row(ld: int, columns: int, rows: int, turned: bool) -> int:
    """Return a row length that cuBLAS accepts: a one-row matrix may state less."""
    return max(ld, rows if turned else columns)


def _loaded(path: str | None) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(path or _found())
    except OSError as error:
        raise DeviceError(
            f"target 'cuda' requires cuBLAS, got {error}; "
            "pip install 'staticgrad[cuda]'"
        ) from None


def _found() -> str:
    """Load the library of NVIDIA's package, or by the name the system knows."""
    try:
        finder = importlib.import_module("cuda.pathfinder")
        return str(finder.load_nvidia_dynamic_lib("cublas").abs_path)
    except (ImportError, RuntimeError):
        return LIBRARY
