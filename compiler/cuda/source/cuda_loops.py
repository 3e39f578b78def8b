"""Source of a LoopKernel in the CUDA subset of Python.

The subset is what Numba's CUDA compilers turn into good code without a device: while
loops over uint32 indices, raw pointers, typed literals, no device functions, shared
arrays of known size, and barriers that all threads of a warp or block reach.

A kernel's parameters are ``p0...`` (one pointer per operand), ``s0...`` (one per
scratch area), ``n0...`` (the symbolic sizes of `CudaSource.sizes`, int64), then
``rows`` and ``step`` (extent of axis 0 and indices per chunk, uint32) where it works in
chunks, ``site`` (int64) where it can fail, and ``status`` (an int64 array) where it can
fail or is *guarded*: a guarded kernel does nothing once an error has been reported, so
that a failed step changes no parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from staticgrad.compiler.codegen.text_emitter import Writer, canonical
from staticgrad.compiler.cuda.source.grid_mapping import (
    CHUNKED,
    Body,
    Chain,
    Mapping,
    bound_axes,
    by_warps,
    chain_of,
    exchanged,
    mapping_of,
    outer_registers,
)
from staticgrad.compiler.cuda.source.lane_reductions import BLOCK, WARP, LaneWriter
from staticgrad.compiler.cuda.source.statement_lines import CODE, Statements
from staticgrad.compiler.cuda.source.tile_copies import ELEMENTS, write_transposed
from staticgrad.compiler.cuda.source.typed_text import (
    NotInSubset,
    TypedText,
    memory_name,
)
from staticgrad.compiler.kernel_ir.kernels import (
    Access,
    Accumulate,
    GemmKernel,
    Load,
    Loop,
    LoopKernel,
    Store,
    Tiles,
    When,
)
from staticgrad.compiler.kernel_ir.schemes import Transposed
from staticgrad.compiler.kernel_ir.walks import statements_of
from staticgrad.errors import GraphError
from staticgrad.ir.foreign import Foreign
from staticgrad.ir.size import Dim
from staticgrad.ir.source import at
from staticgrad.ir.types import computed

__all__ = ["CudaSource", "cuda_source", "refused"]

NAME = "kernel"


@dataclass(frozen=True, slots=True)
class CudaSource:
    """Text of a kernel, its parameters and its launch.

    `kinds` has a word per parameter: "*float32" (pointer), "int64", "uint32" or
    "status". `sizes` are the dims that the int64 sizes are. `doubles` says that it
    may compute in float64. `functions` are those of the user's that it calls.
    """

    text: str
    kinds: tuple[str, ...]
    sizes: tuple[Dim, ...]
    mapping: Mapping | None
    guarded: bool
    doubles: bool
    functions: tuple[Foreign, ...] = ()

    @property
    def chunked(self) -> bool:
        """Whether each worker has a chunk of axis 0."""
        return self.mapping is not None and self.mapping.worker in CHUNKED

    @property
    def canonical(self) -> str:
        """Text without comments: what is compiled."""
        return canonical(self.text)


@lru_cache(maxsize=1024)
def cuda_source(
    kernel: LoopKernel, guarded: bool = False, lanes: bool = False
) -> CudaSource:
    """Return the source of `kernel`; GraphError if there is none on cuda.

    With `lanes` warps share the rows of reductions in any case.
    """
    try:
        return _Kernel(kernel, guarded, lanes).source()
    except NotInSubset as error:
        raise refused(kernel, error) from None


def refused(kernel: LoopKernel | GemmKernel, error: NotInSubset) -> GraphError:
    """Return the error for a kernel that the target cannot run."""
    site = kernel.sites[0] if kernel.sites else None
    where = at(site.source) if site else ""
    return GraphError(
        f"{site.op if site else kernel.name} requires what the CUDA target has, "
        f"got {error}, which is not on cuda; use target='cpu'{where}"
    )


class _Kernel:
    """Writer of one kernel."""

    def __init__(self, kernel: LoopKernel, guarded: bool, lanes: bool) -> None:
        self.kernel = kernel
        self.guarded = guarded
        self.mapping = mapping_of(kernel, lanes)
        self.writer = Writer(depth=1)
        self.statements = Statements(kernel, self.writer)
        self.lanes = LaneWriter(self.statements)
        self.exchanged = exchanged(kernel)
        self.bound = bound_axes(kernel, scratch=True)
        self.partial: dict[int, TypedText] = {}
        self.tile = ""

    def source(self) -> CudaSource:
        getattr(self, f"_{self.mapping.worker}")()
        pointers = [f"*{memory_name(o.dtype)}" for o in self.kernel.operands]
        pointers += [f"*{memory_name(area.dtype)}" for area in self.kernel.scratch]
        names = [f"p{n}" for n in range(len(self.kernel.operands))]
        names += [f"s{n}" for n in range(len(self.kernel.scratch))]
        names += self.statements.sizes.values()
        kinds = pointers + ["int64"] * len(self.statements.sizes)
        if self.mapping.worker in CHUNKED:
            names += ["rows", "step"]
            kinds += ["uint32", "uint32"]
        if self.kernel.fails:
            names.append("site")
            kinds.append("int64")
        if self.kernel.fails or self.guarded:
            names.append("status")
            kinds.append("status")
        text = self._head(names).text()
        functions = tuple(self.statements.functions)
        doubles = "*float64" in kinds or "float64" in canonical(text)
        return CudaSource(
            text, tuple(kinds), tuple(self.statements.sizes), self.mapping,
            self.guarded, doubles or bool(functions), functions,
        )  # fmt: skip

    def _head(self, names: Sequence[str]) -> Writer:
        head = Writer()
        head.comment(f"{self.kernel.name}: {self.mapping.worker}")
        for axis, extent in enumerate(self.kernel.axes):
            head.comment(f"i{axis}: {extent}")
        head.line(f"def {NAME}({', '.join(names)}):")
        with head.indented():
            for kind in self.lanes.shared:
                head.line(f"shared_{kind} = cuda.shared.array(32, dtype={kind})")
            if self.tile:
                size = f"{ELEMENTS}, dtype={self.tile}"
                head.line(f"tile = cuda.shared.array({size})")
            if self.guarded:
                head.line(f"if status[{CODE}] != 0:")
                head.line("    return")
        head.extend(self.writer)
        return head

    # The seven ways of running

    def _thread(self) -> None:
        line = self.writer.line
        line("at = uint32(cuda.grid(1))")
        line("workers = uint32(cuda.gridsize(1))")
        self.statements.worker = "at"
        self._positions(self.mapping.spread, "at", "workers", self._walk)

    def _warp(self) -> None:
        line = self.writer.line
        self._warp_number("at")
        line("workers = uint32(uint32(cuda.gridDim.x) * warps)")
        self.statements.worker = "at"
        self.lanes.group = WARP
        before, body = self.mapping.before, self.mapping.body
        self._positions(
            self.mapping.spread, "at", "workers", lambda: self._row_of(before, body)
        )

    def _column(self) -> None:
        self._chunk("uint32(cuda.blockIdx.x)")
        line = self.writer.line
        line("threads = uint32(cuda.blockDim.x)")
        line(
            "first = uint32(uint32(cuda.blockIdx.y) * threads"
            " + uint32(cuda.threadIdx.x))"
        )
        line("columns = uint32(uint32(cuda.gridDim.y) * threads)")
        for statement in self.kernel.body:
            if isinstance(statement, Loop):
                self._shared_out(chain_of((statement,)), "first", "columns")
            else:
                self.statements.write(statement)

    def _block(self) -> None:
        self._chunk("uint32(cuda.blockIdx.x)")
        self._thread_numbers()
        line = self.writer.line
        line("lanes = uint32(cuda.blockDim.x)")
        line("lane = thread")
        if self.kernel.scratch:
            line("worker = chunk")
        self.statements.worker = "worker"
        self.lanes.group = BLOCK
        self._together(self.kernel.body)

    def _row(self) -> None:
        self._warp_number("warp")
        self._chunk("warp")
        self.statements.worker = "chunk"
        self.lanes.group = WARP
        self.writer.line("if (begin < rows) | (chunk == uint32(0)):")
        with self.writer.indented():
            self._together(self.kernel.body)

    def _alone(self) -> None:
        self._chunk("uint32(cuda.blockIdx.x)")
        self.statements.worker = "chunk"
        self._sequential(self.kernel.body)

    def _tile(self) -> None:
        (statement,) = self.kernel.body
        assert isinstance(statement, Tiles)
        assert isinstance(statement.scheme, Transposed)
        self.tile = write_transposed(self.statements, statement.scheme)

    def _thread_numbers(self) -> None:
        self.writer.line("thread = uint32(cuda.threadIdx.x)")

    def _warp_number(self, name: str) -> None:
        self._thread_numbers()
        line = self.writer.line
        line("lane = uint32(thread & uint32(31))")
        line("warps = uint32(uint32(cuda.blockDim.x) >> uint32(5))")
        line("block = uint32(cuda.blockIdx.x)")
        line(f"{name} = uint32(block * warps + uint32(thread >> uint32(5)))")

    def _chunk(self, number: str) -> None:
        line = self.writer.line
        line(f"chunk = {number}")
        line("begin = uint32(chunk * step)")
        line("end = uint32(min(uint32(begin + step), rows))")

    # Loops

    def _walk(self) -> None:
        self._walked(self.mapping.walked, self.mapping.before, self.mapping.body)

    def _sequential(self, body: Body) -> None:
        for statement in body:
            if isinstance(statement, Loop):
                self._loop(statement.axis, partial(self._sequential, statement.body))
            elif isinstance(statement, When):
                condition = self.statements.values[statement.condition].text
                self.writer.line(f"if {condition}:")
                with self.writer.indented():
                    self._sequential(statement.body)
            elif isinstance(statement, Accumulate):
                self._accumulate(statement)
            else:
                self.statements.write(statement)

    def _accumulate(self, statement: Accumulate) -> None:
        value = self.statements.values[statement.value]
        own = self.statements.values[statement.register]
        register = self.partial.get(statement.register, own)
        self.statements.combine(statement.combine, register, value)

    def _loop(self, axis: int, inside: Callable[[], None]) -> None:
        """Write a loop over every index of `axis`, in order."""
        first, last = self._range(axis)
        self.writer.line(f"i{axis} = {first}")
        self.writer.line(f"while i{axis} < {last}:")
        with self.writer.indented():
            inside()
            self.writer.line(f"i{axis} = uint32(i{axis} + uint32(1))")

    def _range(self, axis: int) -> tuple[str, str]:
        if axis == 0 and self.mapping.worker in CHUNKED:
            return "begin", "end"
        return "uint32(0)", self.statements.count(self.kernel.axes[axis])

    def _walked(self, axes: Sequence[int], before: Body, body: Body) -> None:
        """Write loops over `axes` in order; reductions stay in registers."""
        held: dict[Access, TypedText] = {}
        for access in _kept_in_registers(body, axes):
            dtype = self.kernel.operands[access.operand].dtype
            value = self.statements.expressions.loaded(
                self.statements.place(access), dtype
            )
            name = self.statements.expressions.temporary(value)
            held[access] = TypedText(name, computed(dtype))
        self._nested(axes, lambda: self._innermost(before, body, held))
        for access, register in held.items():
            place = self.statements.place(access)
            text = self.statements.expressions.stored(
                register, self.statements.kept_as(access)
            )
            self.writer.line(f"{place} = {text}")

    def _nested(self, axes: Sequence[int], inside: Callable[[], None]) -> None:
        if not axes:
            inside()
            return
        self._loop(axes[0], lambda: self._nested(axes[1:], inside))

    def _innermost(
        self, before: Body, body: Body, held: dict[Access, TypedText]
    ) -> None:
        for statement in before:
            self.statements.write(statement)
        for statement in body:
            if isinstance(statement, Load) and statement.access in held:
                now = self.statements.expressions.temporary(held[statement.access].text)
                dtype = held[statement.access].dtype
                self.statements.values[statement.result] = TypedText(now, dtype)
            elif isinstance(statement, Store) and statement.access in held:
                new = self.statements.values[statement.value].text
                self.writer.line(f"{held[statement.access].text} = {new}")
            else:
                self._sequential((statement,))

    # Together: all lanes of a warp or block

    def _together(self, body: Body) -> None:
        for statement in body:
            if isinstance(statement, Loop):
                self._shared_loop(statement)
            elif isinstance(statement, Store):
                self.writer.line("if lane == uint32(0):")
                with self.writer.indented():
                    self.statements.write(statement)
                self._synchronise((statement,))
            elif isinstance(statement, Accumulate):
                self._accumulate(statement)
            else:
                self.statements.write(statement)

    def _shared_loop(self, loop: Loop) -> None:
        chain = chain_of((loop,))
        free = [axis for axis in chain.axes if axis not in self.bound]
        if not free:
            self._loop(loop.axis, lambda: self._together(loop.body))
            return
        if self.lanes.group == BLOCK and by_warps(self.kernel, chain, free):
            walked = [axis for axis in chain.axes if axis in self.bound]
            if not walked:
                self._rows_by_warps(chain)
                return
        self._with_partials(chain, lambda: self._from_lanes(chain))

    def _from_lanes(self, chain: Chain) -> None:
        self._shared_out(chain, "lane", self.lanes.count)
        self._synchronise((*chain.before, *chain.body))

    def _with_partials(self, chain: Chain, inside: Callable[[], None]) -> None:
        """Write `inside` with a register per lane, then combine the lanes."""
        outer = outer_registers((*chain.before, *chain.body))
        before = dict(self.partial)
        for register, statement in outer.items():
            own = self.statements.values[register]
            self.partial[register] = self.statements.start(
                -1 - register, statement.combine, statement.dtype
            )
            self.statements.values[register] = own
        inside()
        for register, statement in outer.items():
            partial = self.partial[register]
            self.lanes.combine(statement.combine, partial)
            target = before.get(register, self.statements.values[register])
            self.statements.combine(statement.combine, target, partial)
        self.partial = before

    def _rows_by_warps(self, chain: Chain) -> None:
        """Write rows distributed over the block's warps; lanes share the inside."""
        line = self.writer.line
        line("warp = uint32(thread >> uint32(5))")
        line("warps = uint32(lanes >> uint32(5))")
        if self.kernel.scratch:
            line("worker = uint32(chunk * warps + warp)")
        line("lane = uint32(thread & uint32(31))")
        self.lanes.group = WARP

        def rows() -> None:
            self._positions(
                chain.axes,
                "warp",
                "warps",
                lambda: self._row_of(chain.before, chain.body),
            )
            self.lanes.group = "warps"

        self._with_partials(chain, rows)
        self.lanes.group = BLOCK
        line("lane = thread")
        self._synchronise((*chain.before, *chain.body))

    def _row_of(self, before: Body, body: Body) -> None:
        for statement in before:
            self.statements.write(statement)
        self._together(body)

    def _shared_out(self, chain: Chain, first: str, step: str) -> None:
        """Write the free axes of a chain over lanes, the others in order inside."""
        free = [axis for axis in chain.axes if axis not in self.bound]
        walked = [axis for axis in chain.axes if axis in self.bound]
        self._positions(
            free, first, step,
            lambda: self._walked(walked, chain.before, chain.body),
        )  # fmt: skip

    def _positions(
        self, axes: Sequence[int], first: str, step: str, inside: Callable[[], None]
    ) -> None:
        """Write every `step`-th position of `axes` from `first` on."""
        expressions = self.statements.expressions
        at = expressions.temporary(first)
        in_chunks = 0 in axes and self._range(0)[0] == "begin"
        counts = [
            "uint32(end - begin)"
            if axis == 0 and in_chunks
            else self.statements.count(self.kernel.axes[axis])
            for axis in axes
        ]
        total = f"uint32({' * '.join(counts)})" if len(counts) > 1 else counts[0]
        last = expressions.temporary(total)
        self.writer.line(f"while {at} < {last}:")
        with self.writer.indented():
            self.statements.decode(axes, at)
            if in_chunks:
                self.writer.line("i0 = uint32(i0 + begin)")
            inside()
            self.writer.line(f"{at} = uint32({at} + {step})")

    def _synchronise(self, body: Body) -> None:
        """Write a barrier if `body` touches what the kernel both writes and reads."""
        touched = {
            s.access.operand for s in statements_of(body) if isinstance(s, Load | Store)
        }
        if touched & self.exchanged:
            self.lanes.synchronise()


def _kept_in_registers(body: Body, axes: Sequence[int]) -> list[Access]:
    """Return places that do not move along `axes` and that `body` combines into."""
    if not axes:
        return []
    loaded = dict.fromkeys(s.access for s in body if isinstance(s, Load))
    stored = {s.access for s in body if isinstance(s, Store)}
    return [
        access
        for access in loaded
        if access in stored
        and access.operand >= 0
        and access.dynamic is None
        and all(access.strides[axis] == 0 for axis in axes)
    ]
