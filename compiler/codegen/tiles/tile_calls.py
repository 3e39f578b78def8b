"""Emission of a scheme as the function that a kernel's source calls.

``emitted(scheme)`` is a function of (operands and scratch areas, (begin, end, sizes of
the scheme)). Its body is vector code, from the outermost loop to the innermost: LLVM
does not have to find vectors in it, and registers hold what a scheme means them to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from staticgrad.compiler.codegen.llvm.index_code import IndexCode
from staticgrad.compiler.codegen.llvm.ir_emitter import Value
from staticgrad.compiler.codegen.tiles.convolution_rows import rows
from staticgrad.compiler.codegen.tiles.depthwise import depthwise, depthwise_weights
from staticgrad.compiler.codegen.tiles.epilogue_tiles import updating
from staticgrad.compiler.codegen.tiles.few_channels import spread
from staticgrad.compiler.codegen.tiles.transpose_tiles import transposing
from staticgrad.compiler.codegen.tiles.weight_gradients import weights
from staticgrad.compiler.codegen.tiles.winograd_tiles import winograd, winograd_kernels
from staticgrad.compiler.codegen.tiles.winograd_weights import winograd_weights
from staticgrad.compiler.kernel_ir import schemes

Emit = Callable[[IndexCode, Any, list[Value], list[Value]], None]

EMITTERS: dict[type, Emit] = {
    schemes.Rows: rows,
    schemes.FewChannelRows: spread,
    schemes.Weights: weights,
    schemes.Depthwise: depthwise,
    schemes.DepthwiseWeights: depthwise_weights,
    schemes.Winograd: winograd,
    schemes.WinogradKernels: winograd_kernels,
    schemes.WinogradWeights: winograd_weights,
    schemes.Transposed: transposing,
    schemes.Update: updating,
}

SCHEMES: dict[str, Any] = {
    kind.__name__: kind
    for kind in (*EMITTERS, schemes.Slide, schemes.ImageView, schemes.Act)
}
"""The names that the repr of a scheme uses."""


def emitted(scheme: schemes.Scheme) -> Any:
    """Return the intrinsic of a scheme.

    It `unrolls` loops, but those over a product's terms are long bodies as they are.
    """

    @intrinsic
    def tiles(typing: Any, memory: Any, numbers: Any) -> Any:
        def generate(context: Any, b: Any, _signature: Any, args: Any) -> Value:
            code = IndexCode(b, scheme.bits, scheme.lanes)
            pointers = [
                code.pointer(address) for address in cgutils.unpack_tuple(b, args[0])
            ]
            EMITTERS[type(scheme)](
                code, scheme, pointers, cgutils.unpack_tuple(b, args[1])
            )
            return context.get_dummy_value()

        count = len(numbers)
        return types.void(memory, types.UniTuple(types.int64, count)), generate

    tiles.unrolls = not isinstance(scheme, schemes.Update)
    return tiles
