"""The Target protocol: all that an executable asks of what it was compiled for.

A target is a graph made ready for one machine, for any sizes. It derives from `Target`
and overrides what its machine can do; what it leaves alone raises GraphError, or says
that there is nothing. Nobody else asks for a target's name or class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

import numpy.typing as npt

from staticgrad.compiler.kernel_ir.plan import Plan
from staticgrad.compiler.runtime.arguments import Signature
from staticgrad.compiler.runtime.bound import Runner
from staticgrad.compiler.runtime.frame import Frame
from staticgrad.compiler.runtime.profile import Profile
from staticgrad.errors import GraphError
from staticgrad.ir.node import Input
from staticgrad.ir.source import at, here

if TYPE_CHECKING:
    from staticgrad.compiler.runtime.targets.cpu_target import Route
    from staticgrad.compiler.runtime.targets.cuda_target import CudaTarget

Array = npt.NDArray[Any]
Sizes = Mapping[str, int]


class Target(Protocol):
    """A graph made ready to run on one machine.

    `name` is the user's word for it. `native_loop` says whether a program of the
    virtual machine can run its frames, `gpu` is the target itself if its arrays lie on
    a GPU.
    """

    name: str
    native_loop: bool = False

    @property
    def gpu(self) -> CudaTarget | None:
        """The target with what only a GPU has, if it is one."""
        return None

    def call(self, arrays: Sequence[Array], sizes: Sizes) -> Sequence[Array]:
        """Fresh outputs for `arrays`, whose shapes give `sizes`."""

    def bind(self, arrays: Sequence[Array], sizes: Sizes) -> Runner:
        """The program with its arguments and outputs fixed."""

    def explain(self, inputs: Sequence[Input], notes: Sequence[str]) -> str:
        """Describe what was compiled, what came from the cache and what is copied."""

    def route(self, arrays: Sequence[Array], sizes: Sizes) -> Route | None:
        """A way for more calls with arrays of these shapes, if it is shorter."""
        return None

    def given(self, signature: Signature, values: Sequence[Any]) -> list[Any]:
        """The values as they are, or GraphError for those out of reach."""
        return signature.on_host(values)

    def context(self) -> AbstractContextManager[None]:
        """A context in which executables are compiled for the same device."""
        return nullcontext()

    def source(self) -> str:
        """The generated code of all kernels, each once."""
        return ""

    def plan(self, sizes: Sizes) -> Plan | None:
        """Return the memory plan for `sizes`, if there is one."""
        return None

    def program_frame(self, sizes: Sizes) -> Frame:
        """A new frame for other programs; GraphError without a virtual machine."""
        raise self.without_frames()

    def call_on_device(self, arrays: Sequence[Any], sizes: Sizes) -> Sequence[Any]:
        """As `call`, with outputs that stay on the GPU; GraphError without one."""
        raise self.refused(
            "on_device", "cuda", "; compile for it, or call the executable"
        )

    def profile(self, arrays: Sequence[Array], sizes: Sizes, times: int) -> Profile:
        """Time each kernel; GraphError where that is not measured."""
        raise self.refused(
            "profile", "cpu",
            "; compile it for the cpu; for times on a GPU run the program under Nsight "
            "Systems (nsys profile)",
        )  # fmt: skip

    def refused(self, what: str, wanted: str, advice: str) -> GraphError:
        """The error for what only the target `wanted` can do."""
        return GraphError(
            f"{what} requires target {wanted!r}, got {self.name!r}{advice}{at(here())}"
        )

    def without_frames(self) -> GraphError:
        """The error for what needs a plan, or a frame of the virtual machine."""
        advice = ", which has no such frames or plan; compile it again"
        return self.refused("the executable", "cpu", advice)
