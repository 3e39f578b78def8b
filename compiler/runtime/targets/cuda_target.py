"""The cuda target: generated kernels and cuBLAS on a GPU, run as a captured graph.

Parameters and states stay on the device; a call uploads its inputs, replays and reads
its outputs. The plan is the cpu's, with chunks for a GPU.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy.typing as npt

from staticgrad.compiler.cuda.cuda_code import CudaCode, cuda_code
from staticgrad.compiler.cuda.cuda_frame import CudaFrame
from staticgrad.compiler.cuda.device import Device, current, using
from staticgrad.compiler.cuda.device_arrays import DeviceArray, seen_on
from staticgrad.compiler.cuda.device_chunks import chunks_on_gpu
from staticgrad.compiler.cuda.device_memory import DeviceMemory
from staticgrad.compiler.cuda.driver import open_device
from staticgrad.compiler.cuda.launches import launches
from staticgrad.compiler.cuda.source.cuda_loops import CudaSource, refused
from staticgrad.compiler.cuda.source.typed_text import NotInSubset
from staticgrad.compiler.host.locks import fork_safe_lock
from staticgrad.compiler.kernel_ir.kernels import GemmKernel, LoopKernel, Site
from staticgrad.compiler.kernel_ir.plan import Plan
from staticgrad.compiler.kernel_ir.schedule import Schedule
from staticgrad.compiler.memory import planner
from staticgrad.compiler.runtime.arguments import Signature
from staticgrad.compiler.runtime.bound import CopyingRunner
from staticgrad.compiler.runtime.explanation import explain_cuda
from staticgrad.compiler.runtime.target import Target
from staticgrad.compiler.verify.size_requirements import accept
from staticgrad.ir.node import Input

Array = npt.NDArray[Any]

MOST_SIZES = 8  # sets of sizes whose device memory and graph are kept


@dataclass(frozen=True, slots=True)
class Planned:
    """Code for some sizes, its plan, and its constants on the device."""

    code: CudaCode
    plan: Plan
    constants: DeviceMemory[int]


class CudaTarget(Target):
    """A Schedule that runs on a device for any sizes, one call at a time."""

    name = "cuda"
    cutting = staticmethod(chunks_on_gpu)

    def __init__(
        self,
        schedule: Schedule,
        verify: Callable[[Plan], None],
        device: Device,
        checked: Sequence[Site] = (),
        require: Callable[[Mapping[str, int]], None] = accept,
        fit: Callable[[Mapping[str, int]], Schedule] | None = None,
    ) -> None:
        """Make the target; `fit` returns another Schedule of the same results."""
        self.device = device
        self.code = cuda_code(schedule, checked)
        self.planned: deque[Plan] = deque(maxlen=MOST_SIZES)
        self._verify = verify
        self._require = require
        self._frames: OrderedDict[tuple[tuple[str, int], ...], CudaFrame] = (
            OrderedDict()
        )
        self._plans: dict[tuple[tuple[str, int], ...], Planned] = {}
        self._running = fork_safe_lock()
        self._fit = fit
        self._checked = checked
        self._constants = self._uploaded(self.code)
        for loop, source in zip(self.code.loops, self.code.sources, strict=True):
            if source is not None:
                self._load(loop, source)

    def _load(self, loop: LoopKernel | GemmKernel, source: CudaSource) -> None:
        try:
            self.device.load(source)
        except NotInSubset as error:
            raise refused(loop, error) from error

    def _uploaded(self, code: CudaCode) -> DeviceMemory[int]:
        """Return the constants on the device, kept while a frame reads them."""
        values = code.constants
        memory = DeviceMemory(
            self.device, {n: value.nbytes for n, value in values.items()}
        )
        for number, value in values.items():
            if value.size:
                self.device.write(memory.addresses[number], value)
        return memory

    @property
    def gpu(self) -> CudaTarget:
        """The target: its arrays lie on a GPU."""
        return self

    def context(self) -> AbstractContextManager[None]:
        """A context in which executables use the same device."""
        return using(self.device)

    def explain(self, inputs: Sequence[Input], notes: Sequence[str]) -> str:
        """Describe the launches, and how each kernel is spread over the device."""
        return explain_cuda(self.device.name, self.code, self.planned, inputs, notes)

    def source(self) -> str:
        """The generated code of all kernels, each once."""
        return "\n\n".join(dict.fromkeys(s.text for s in self.code.sources if s))

    def plan(self, sizes: Mapping[str, int]) -> Plan:
        """Return the memory plan for `sizes`."""
        return self._planned(sizes).plan

    def _planned(self, sizes: Mapping[str, int]) -> Planned:
        key = tuple(sizes.items())
        if key not in self._plans:
            self._require(sizes)
            code, constants = self.code, self._constants
            if self._fit is not None:
                code = cuda_code(self._fit(sizes), self._checked)
                constants = self._uploaded(code)
            plan = planner.plan(code.root, sizes, chunks_on_gpu)
            self._verify(plan)
            self.planned.append(plan)
            self._plans[key] = Planned(code, plan, constants)
        return self._plans[key]

    def frame(self, sizes: Mapping[str, int]) -> CudaFrame:
        """Return the frame for `sizes`, made at their first use."""
        key = tuple(sizes.items())
        frame = self._frames.get(key)
        if frame is None:
            frame = self._frames[key] = self.new_frame(sizes)
        self._frames.move_to_end(key)
        if len(self._frames) > MOST_SIZES:
            self._frames.popitem(last=False)
        return frame

    def new_frame(
        self, sizes: Mapping[str, int], status: int | None = None
    ) -> CudaFrame:
        """Return a frame of its own, for other programs; see CudaFrame for `status`."""
        found = self._planned(sizes)
        sized = launches(found.code, found.plan, self.device)
        return CudaFrame(sized, self.device, found.constants, status)

    def call(self, arrays: Sequence[Array], sizes: Mapping[str, int]) -> list[Array]:
        """Run on `arrays` into fresh outputs; updates are applied on the device."""
        with self._running:
            return self.frame(sizes).call(arrays)

    def call_on_device(
        self, arrays: Sequence[Array | DeviceArray], sizes: Mapping[str, int]
    ) -> list[DeviceArray]:
        """Run as `call`, with outputs that stay on the device."""
        with self._running:
            return self.frame(sizes).call_on_device(arrays)

    def given(self, signature: Signature, values: Sequence[Any]) -> list[Any]:
        """`values`, of which those on a GPU are DeviceArrays."""
        pairs = zip(signature.names, values, strict=True)
        return [seen_on(self.device, name, value) for name, value in pairs]

    def bind(self, arrays: Sequence[Array], sizes: Mapping[str, int]) -> CopyingRunner:
        """Fixed outputs on the host; inputs are read anew at each run."""
        call = partial(self.call, tuple(arrays), dict(sizes))
        return CopyingRunner(call, self.frame(sizes).shapes)


def device_in_use() -> Device:
    """Return the device for executables: by default the first GPU."""
    return current(open_device)
