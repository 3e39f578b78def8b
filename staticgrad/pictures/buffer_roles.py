"""Roles of a plan's buffers, which give their colours.

Where a schedule trains, the role of a buffer is that of its kernel: "forward" if it
leads to an output, "backward" if to new parameter values only, "update" if it writes
them. In other schedules, by the module of the node that makes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from staticgrad.compiler.kernel_ir.kernel_roles import kernel_roles
from staticgrad.compiler.kernel_ir.schedule import Schedule, Step, writes

TRAINING = {"forward": "#60a5fa", "backward": "#fb923c", "update": "#34d399"}
MODULES = (
    "#60a5fa", "#fb923c", "#34d399", "#a78bfa", "#f472b6", "#22d3ee", "#facc15",
    "#94a3b8",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Roles:
    """Role of each buffer, and the colour of each role that occurs."""

    names: tuple[str, ...]
    colors: dict[str, str]


def buffer_roles(schedule: Schedule) -> Roles:
    """Return the roles of all buffers of a schedule."""
    makers: dict[int, int] = {}
    for number, kernel in enumerate(schedule.kernels):
        for buffer in writes(kernel):
            makers.setdefault(buffer, number)
    roles = kernel_roles(schedule)
    kinds: Sequence[str] = roles or [_module(kernel) for kernel in schedule.kernels]
    names = tuple(
        kinds[makers[buffer.number]] if buffer.number in makers else ""
        for buffer in schedule.buffers
    )
    arena = sorted(
        (makers.get(buffer.number, -1), name)
        for name, buffer in zip(names, schedule.buffers, strict=True)
        if buffer.kind in ("temporary", "slots")
    )
    found = list(dict.fromkeys(name for _, name in arena))
    if roles:
        return Roles(names, {k: TRAINING[k] for k in TRAINING if k in found})
    colors = (MODULES[position % len(MODULES)] for position in range(len(found)))
    return Roles(names, dict(zip(found, colors, strict=True)))


def _module(kernel: Step) -> str:
    scopes = [site.scope for site in kernel.sites if site.scope]
    return scopes[-1].partition(".")[0] if scopes else "(no module)"
