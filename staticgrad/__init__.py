"""staticgrad: automatic differentiation of static graphs, compiled by Numba.

A computation is defined once in Python, differentiated, optimised, planned to the byte,
compiled to native code, and run without Python in the loop.

>>> import staticgrad as sg
>>> with sg.Graph() as graph:
...     x = sg.input("x", ("n",))
...     y = sg.sum(x * x)
>>> f = sg.compile(sg.grad(y, x), inputs=[x], target="reference")
>>> f(x=[1.0, 2.0])
array([2., 4.], dtype=float32)
"""

from typing import TYPE_CHECKING

from numpy import e, inf, nan, newaxis, pi

from staticgrad import errors, nn, ops, optim, testing
from staticgrad.compiler.runtime.taps import Tap, taps
from staticgrad.compiler.runtime.threads import get_num_threads, set_num_threads
from staticgrad.compiling import compile
from staticgrad.control import cond, fori_loop, scan, switch, while_loop
from staticgrad.custom.callback_ops import pure_callback
from staticgrad.custom.definition import custom_op
from staticgrad.differentiate.checkpointing import checkpoint
from staticgrad.differentiate.gradients import (
    grad,
    jvp,
    substitute,
    value_and_grad,
    vjp,
)
from staticgrad.differentiate.jacobians import hessian, hvp, jacobian
from staticgrad.errors import (
    CompilerBug,
    DeviceError,
    DTypeError,
    FactorisationError,
    GraphError,
    HookWarning,
    IndexOutOfRange,
    LoopLimitError,
    MemoryBudgetError,
    NonFiniteError,
    ShapeError,
)
from staticgrad.hooks.hooks import (
    clip_gradient,
    on_gradient,
    reverse_gradient,
    straight_through,
)
from staticgrad.ir.graph import Graph, scope
from staticgrad.ir.node import Constant, Input, Parameter, State, Tensor
from staticgrad.ir.size import Size
from staticgrad.observe.gradient_paths import explain_gradient
from staticgrad.observe.gradient_report import gradient_report
from staticgrad.ops import *  # noqa: F403
from staticgrad.ops import protocol as _protocol
from staticgrad.pictures import render
from staticgrad.sparse.compressed import SparseMatrix, sparse_hessian, sparse_jacobian
from staticgrad.train import amp, metrics
from staticgrad.train.trainer import Trainer
from staticgrad.vectorize.mapping import vmap

__version__ = "0.1.0"

if not TYPE_CHECKING:

    def __getattr__(name: str):
        """An AttributeError; of NumPy's names without a function, with advice."""
        raise AttributeError(_protocol.missing(name))

    def __dir__() -> list[str]:
        """What is public: not the modules that are imported on the way."""
        return sorted([*__all__, "__doc__", "__name__", "__version__"])


__all__ = [
    "CompilerBug",
    "Constant",
    "DTypeError",
    "DeviceError",
    "FactorisationError",
    "Graph",
    "GraphError",
    "HookWarning",
    "IndexOutOfRange",
    "Input",
    "LoopLimitError",
    "MemoryBudgetError",
    "NonFiniteError",
    "Parameter",
    "ShapeError",
    "Size",
    "SparseMatrix",
    "State",
    "Tap",
    "Tensor",
    "Trainer",
    "amp",
    "checkpoint",
    "clip_gradient",
    "compile",
    "cond",
    "custom_op",
    "e",
    "errors",
    "explain_gradient",
    "fori_loop",
    "get_num_threads",
    "grad",
    "gradient_report",
    "hessian",
    "hvp",
    "inf",
    "jacobian",
    "jvp",
    "metrics",
    "nan",
    "newaxis",
    "nn",
    "on_gradient",
    "optim",
    "pi",
    "pure_callback",
    "render",
    "reverse_gradient",
    "scan",
    "scope",
    "set_num_threads",
    "sparse_hessian",
    "sparse_jacobian",
    "straight_through",
    "substitute",
    "switch",
    "taps",
    "testing",
    "value_and_grad",
    "vjp",
    "vmap",
    "while_loop",
]  # fmt: skip
__all__ += ops.__all__
