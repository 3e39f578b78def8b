"""``profile()``: the time of a program's kernels, by the user's lines.

A frame of its own runs the program in parts, one after the other. A part is a kernel
and what stands before it (copies, the commit); a loop, a branch or a region of several
kernels is one part, as its rows jump. While a part runs, the row behind it is an END
(frame.py). Of each part the median of all runs is taken, less what an empty part takes.

Weakness: a part begins with a call from Python, so what the one before left in the
first-level cache may be gone; times below about 50 ns are within the clock's noise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from staticgrad.compiler.kernel_ir.kernel_roles import kernel_roles
from staticgrad.compiler.kernel_ir.kernels import Site
from staticgrad.compiler.runtime import vm
from staticgrad.compiler.runtime.calling import Machine
from staticgrad.compiler.runtime.frame import Frame
from staticgrad.compiler.runtime.instructions import Sized
from staticgrad.ir.storage import bring_home

WIDTH = 44  # of names in the table


@dataclass(frozen=True, slots=True)
class ProfilePart:
    """Kernels timed together, with their seconds, lines and modules.

    `role` is "forward", "backward" or "update" where parameters are trained, else "".
    """

    name: str
    seconds: float
    role: str
    lines: tuple[str, ...]
    modules: tuple[str, ...]

    def __str__(self) -> str:
        modules = f" in {', '.join(self.modules)}" if self.modules else ""
        name = self.name if len(self.name) <= WIDTH else f"{self.name[: WIDTH - 1]}…"
        return f"{self.role:8} {name:{WIDTH}}  {', '.join(self.lines)}{modules}".strip()


@dataclass(frozen=True, slots=True)
class Profile:
    """Result of profile; its string is a table, the longest part first.

    `parts` are in the order in which they run.
    """

    parts: tuple[ProfilePart, ...]
    runs: int

    @property
    def seconds(self) -> float:
        """Total seconds."""
        return sum(part.seconds for part in self.parts)

    @property
    def roles(self) -> dict[str, float]:
        """Seconds of forward, backward and update; empty where nothing is trained."""
        return _summed((p.role, p.seconds) for p in self.parts if p.role)

    @property
    def lines(self) -> dict[str, float]:
        """Seconds of each line (``trainer.py:41``), the longest first.

        A kernel of several lines is shared out evenly.
        """
        return _shared((part.lines, part.seconds) for part in self.parts)

    @property
    def modules(self) -> dict[str, float]:
        """Seconds of each module, by its path, in the same way."""
        return _shared((part.modules, part.seconds) for part in self.parts)

    def __str__(self) -> str:
        whole = max(self.seconds, 1e-12)
        roles = (f", {name} {s / whole:.0%}" for name, s in self.roles.items())
        text = [f"{1e6 * whole:.2f} us, median of {self.runs} runs{''.join(roles)}"]
        for part in sorted(self.parts, key=lambda p: -p.seconds):
            share, micro = part.seconds / whole, 1e6 * part.seconds
            text.append(f"{share:6.1%} {micro:9.2f} us  {part}")
        return "\n".join(text)


def profile(
    machine: Machine, frame: Frame, sized: Sized,
    writing: AbstractContextManager[object] | None, times: int,
) -> Profile:  # fmt: skip
    """Run `frame` of `sized` `times` times; what is stored is then as before.

    `writing` is the lock of those who write it, if anything is.
    """
    spans = list(_spans(sized))
    stored = [b.leaf for b in sized.code.root.buffers if b.leaf is not None]
    bring_home()
    with writing or nullcontext():  # no step between, which would be undone
        kept = [(leaf, leaf.value) for leaf in stored] if writing else []
        try:
            taken = [_timed(machine, frame, spans) for _ in range(times + 1)][1:]
        finally:
            for leaf, value in kept:
                leaf.value = value
    *seconds, empty = np.median(np.array(taken), axis=0).tolist()
    found = _parts(sized, spans, [max(took - empty, 0.0) for took in seconds])
    return Profile(tuple(found), times)


def _timed(
    machine: Machine, frame: Frame, spans: Sequence[tuple[int, int]]
) -> list[float]:
    """Return the seconds of each part in one run, and of an empty one."""
    end = spans[-1][1]
    seconds = []
    for first, stop in (*spans, (end, end)):
        code, took = frame.timed(machine, first, stop)
        if code > vm.FINISHED:
            raise frame.error()
        seconds.append(took)
    return seconds


def _spans(sized: Sized) -> Iterator[tuple[int, int]]:
    """Rows (first, stop) of each part: no row jumps from one part to another."""
    table = sized.table
    last = len(table.rows) - 1  # END
    reach = np.arange(last + 1)  # the last row that the part of a row has to hold
    for row, _, target in table.jumps.tolist():
        low, high = min(row, target), max(row, target - 1)
        reach[low] = max(reach[low], high)
    for row in table.spread_rows:
        reach[row] = row + table.rows[row, 1]
    kernels = set(table.kernel_rows.tolist())
    last_kernel = max(kernels, default=-1)
    first, inside, full = 0, -1, False
    for row in range(last_kernel):
        inside, full = max(inside, int(reach[row])), full or row in kernels
        if full and row >= inside:
            yield first, row + 1
            first, full = row + 1, False
    yield first, last


def _parts(
    sized: Sized, spans: Sequence[tuple[int, int]], seconds: Sequence[float]
) -> Iterator[ProfilePart]:
    code = sized.code
    roles = kernel_roles(code.root)
    rows, called = sized.table.kernel_rows.tolist(), sized.table.called.tolist()
    at_row = dict(zip(rows, called, strict=True))
    for span, took in zip(spans, seconds, strict=True):
        numbers = [at_row[row] for row in range(*span) if row in at_row]
        names = [code.loops[number].name for number in numbers]
        sites = [site for number in numbers for site in code.loops[number].sites]
        role = ""
        if roles is not None and numbers:
            path, place = code.flat.kernel_homes[numbers[-1]]
            role = roles[path[0][0] if path else place]
        lines = dict.fromkeys(_lines(sites))
        modules = dict.fromkeys(site.scope for site in sites if site.scope)
        yield ProfilePart(" + ".join(names), took, role, tuple(lines), tuple(modules))


def _lines(sites: Sequence[Site]) -> Iterator[str]:
    for site in sites:
        if site.source is not None:
            yield f"{Path(site.source.file).name}:{site.source.line}"


def _summed(pairs: Iterator[tuple[str, float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, seconds in pairs:
        found[name] = found.get(name, 0.0) + seconds
    return found


def _shared(pairs: Iterator[tuple[tuple[str, ...], float]]) -> dict[str, float]:
    """Return seconds by name, each divided evenly; the longest first."""
    found = _summed(
        (name, seconds / len(names)) for names, seconds in pairs for name in names
    )
    return dict(sorted(found.items(), key=lambda item: -item[1]))
