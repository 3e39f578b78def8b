"""Executables: what ``compile`` returns.

A call arranges its arguments, finds the program for their sizes and runs it with fresh
outputs. `bind` fixes arguments and outputs once, so that later calls do neither.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt

from staticgrad.compiler.arguments import Signature
from staticgrad.compiler.backends.cpu import CpuTarget
from staticgrad.compiler.backends.reference_target import ReferenceTarget
from staticgrad.compiler.explanation import explain
from staticgrad.compiler.frame import Frame
from staticgrad.compiler.plan import Plan
from staticgrad.errors import GraphError
from staticgrad.ir.node import Input
from staticgrad.ir.size import symbols

Array = npt.NDArray[Any]
Unflatten = Callable[[Sequence[Any]], Any]
Target = CpuTarget | ReferenceTarget


class Runner(Protocol):
    """Arguments, outputs and what computes them."""

    def run(self, times: int) -> Sequence[Array]:
        """The outputs after so many runs."""


@dataclass(frozen=True)
class Memory:
    """The memory plan of an executable, for the sizes of its last call.

    `arena_bytes` hold every temporary; no plan can do with fewer than
    `lower_bound_bytes`; `unplanned_bytes` is what one array per tensor would take.
    `buffers` are (name, bytes, offset, first kernel, last kernel) of what is in the
    arena.
    """

    plan: Plan

    @property
    def arena_bytes(self) -> int:
        """The size of the one allocation that holds every temporary."""
        return self.plan.arena_bytes

    @property
    def lower_bound_bytes(self) -> int:
        """The most bytes that are alive at one time, unpadded."""
        return self.plan.lower_bound_bytes

    @property
    def unplanned_bytes(self) -> int:
        """The sum over all tensors of the unfused graph."""
        return self.plan.unplanned_bytes

    @property
    def buffers(self) -> tuple[tuple[str, int, int, int, int], ...]:
        """(name, bytes, offset, first kernel, last kernel) of each buffer."""
        plan = self.plan
        rows = zip(
            plan.schedule.buffers, plan.bytes, plan.offsets, plan.first, plan.last,
            strict=True,
        )  # fmt: skip
        return tuple(
            (buffer.name, size, offset, first, last)
            for buffer, size, offset, first, last in rows
            if offset >= 0
        )

    def __repr__(self) -> str:
        return (
            f"Memory(arena_bytes={self.arena_bytes}, "
            f"lower_bound_bytes={self.lower_bound_bytes}, "
            f"unplanned_bytes={self.unplanned_bytes})"
        )


class Executable:
    """A compiled graph. Call it with arrays, by position or by keyword.

    It may be called from several threads at once. `target` computes the leaves that
    `unflatten` makes the result of: the first `results` of its outputs.
    """

    def __init__(
        self,
        target: Target,
        inputs: Sequence[Input],
        unflatten: Unflatten,
        results: int,
        sizes: Mapping[str, int] | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        self.target = target
        self.inputs = tuple(inputs)
        self.notes = tuple(notes)
        self._signature = Signature(inputs)
        self._unflatten = unflatten
        self._results = results
        self._sizes: Mapping[str, int] | None = _static(inputs, sizes)
        if self._sizes is not None and isinstance(target, CpuTarget):
            target.pool(self._sizes)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The outputs, as fresh arrays in the structure that compile was given."""
        signature = self._signature
        arrays = signature.arrays(signature.arrange(args, kwargs))
        sizes = self._sizes = signature.sizes(arrays)
        return self._unflatten(self.target.call(arrays, sizes)[: self._results])

    def bind(self, *args: Any, **kwargs: Any) -> Bound:
        """The executable with its arguments fixed: nothing is copied.

        Each call of the result reads the arrays as they are then, and returns the same
        output arrays. DTypeError or GraphError for an array that would need a copy.
        """
        signature = self._signature
        arrays = signature.exact(signature.arrange(args, kwargs))
        sizes = self._sizes = signature.sizes(arrays)
        return self._bound(arrays, sizes)

    def repeat(self, times: int, *args: Any, **kwargs: Any) -> Any:
        """Call `times` times with the same arguments, in one native call.

        Returns fresh outputs of the last run; only updates make the runs differ.
        """
        signature = self._signature
        arrays = signature.arrays(signature.arrange(args, kwargs))
        sizes = self._sizes = signature.sizes(arrays)
        return self._bound(arrays, sizes).repeat(times)

    def _bound(self, arrays: Sequence[Array], sizes: Mapping[str, int]) -> Bound:
        runner = self.target.bind(arrays, sizes)
        return Bound(runner, self._unflatten, self._results)

    def frame(self, sizes: Mapping[str, int] | None = None) -> Frame:
        """A frame with arrays of its own for inputs and outputs, for other programs."""
        frame = self._native().frame(dict(sizes or {}))
        return frame.own(self.inputs, self._results)

    def explain(self) -> str:
        """What was compiled, what came from the cache, what is copied, as text."""
        notes = (*self.notes, *self._signature.notes.values())
        if isinstance(self.target, CpuTarget):
            return explain(self.target, self.inputs, notes)
        return "\n".join(["target reference: node by node with NumPy", *notes])

    def source(self) -> str:
        """The generated code of all kernels, each once."""
        if isinstance(self.target, CpuTarget):
            sources = (kernel.source for kernel in self.target.code.natives)
            return "\n\n".join(dict.fromkeys(sources))
        return ""

    @property
    def memory(self) -> Memory:
        """The memory plan for the sizes of the last call (or those of compile)."""
        if self._sizes is None:
            raise GraphError(
                "memory requires sizes, got none; call the executable once or give "
                "compile(sizes={...})"
            )
        return Memory(self._native().plan(self._sizes))

    def _native(self) -> CpuTarget:
        if isinstance(self.target, CpuTarget):
            return self.target
        raise GraphError(
            "the reference target has no frames and no memory plan, got a request for "
            "one; compile with target='cpu'"
        )


class Bound:
    """An executable whose arguments and outputs stay where they are."""

    def __init__(self, runner: Runner, unflatten: Unflatten, results: int) -> None:
        self._runner = runner
        self._unflatten = unflatten
        self._results = results

    def __call__(self) -> Any:
        """Run; the outputs are those of the last call, written anew."""
        return self._unflatten(self._runner.run(1)[: self._results])

    def repeat(self, times: int) -> Any:
        """Run `times` times in one native call; the outputs of the last run.

        Only updates make the runs differ.
        """
        if times < 1:
            raise ValueError(
                f"repeat requires at least 1, got {times}; leave the call out"
            )
        return self._unflatten(self._runner.run(times)[: self._results])


def _static(
    inputs: Sequence[Input], sizes: Mapping[str, int] | None
) -> dict[str, int] | None:
    """The sizes before the first call, if they are static or all given."""
    names = symbols(tuple(dim for leaf in inputs for dim in leaf.shape))
    given = dict(sizes or {})
    unknown = given.keys() - names
    if unknown:
        raise GraphError(
            f"compile requires sizes of its inputs, got {', '.join(sorted(unknown))}; "
            f"they are {', '.join(sorted(names)) or 'static'}"
        )
    if names - given.keys():
        return None
    return {name: given[name] for name in _in_order(inputs)}


def _in_order(inputs: Sequence[Input]) -> list[str]:
    found: dict[str, None] = {}
    for leaf in inputs:
        for dim in leaf.shape:
            found.update(dict.fromkeys(sorted(symbols((dim,)))))
    return list(found)
