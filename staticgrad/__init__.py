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

from importlib import import_module
from typing import TYPE_CHECKING

from numpy import e, inf, nan, newaxis, pi

from staticgrad import errors, ops
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
from staticgrad.ir.graph import OpenGraph as Graph
from staticgrad.ir.graph import scope
from staticgrad.ir.node import Constant, Input, Parameter, State, Tensor
from staticgrad.ir.size import Size
from staticgrad.ops import *  # noqa: F403
from staticgrad.ops import protocol as _protocol

if TYPE_CHECKING:
    from staticgrad import nn, optim, testing
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
    from staticgrad.hooks.hooks import (
        clip_gradient,
        on_gradient,
        reverse_gradient,
        straight_through,
    )
    from staticgrad.observe.gradient_paths import explain_gradient
    from staticgrad.observe.gradient_report import gradient_report
    from staticgrad.pictures import render
    from staticgrad.sparse.compressed import (
        SparseMatrix,
        sparse_hessian,
        sparse_jacobian,
    )
    from staticgrad.train import amp, metrics
    from staticgrad.train.trainer import Trainer
    from staticgrad.vectorize.mapping import vmap

_LATER = {
    "staticgrad": "nn optim testing",
    "staticgrad.compiler.runtime.taps": "Tap taps",
    "staticgrad.compiler.runtime.threads": "get_num_threads set_num_threads",
    "staticgrad.compiling": "compile",
    "staticgrad.control": "cond fori_loop scan switch while_loop",
    "staticgrad.custom.callback_ops": "pure_callback",
    "staticgrad.custom.definition": "custom_op",
    "staticgrad.differentiate.checkpointing": "checkpoint",
    "staticgrad.differentiate.gradients": "grad jvp substitute value_and_grad vjp",
    "staticgrad.differentiate.jacobians": "hessian hvp jacobian",
    "staticgrad.hooks.hooks": (
        "clip_gradient on_gradient reverse_gradient straight_through"
    ),
    "staticgrad.observe.gradient_paths": "explain_gradient",
    "staticgrad.observe.gradient_report": "gradient_report",
    "staticgrad.pictures": "render",
    "staticgrad.sparse.compressed": "SparseMatrix sparse_hessian sparse_jacobian",
    "staticgrad.train": "amp metrics",
    "staticgrad.train.trainer": "Trainer",
    "staticgrad.vectorize.mapping": "vmap",
}
"""Public names by the module that is imported when one of them is first asked for.

A type checker reads the imports above instead; a test compares both.
"""
_MODULE_OF = {name: module for module, row in _LATER.items() for name in row.split()}
_PACKAGES = ("nn", "optim", "testing", "amp", "metrics")

__version__ = "0.1.0"

if not TYPE_CHECKING:

    def __getattr__(name: str):
        """A public name of a module that is imported now, or an AttributeError."""
        module = _MODULE_OF.get(name)
        if module is None:
            raise AttributeError(_protocol.missing(name))
        if name in _PACKAGES:
            value = import_module(f"{module}.{name}")
        else:
            value = getattr(import_module(module), name)
        return globals().setdefault(name, value)

    def __dir__() -> list[str]:
        """Return the public names, without modules imported internally."""
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
if not TYPE_CHECKING:
    __all__ += ops.__all__
