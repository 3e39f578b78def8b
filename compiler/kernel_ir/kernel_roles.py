"""Roles of the kernels of a training schedule: forward, backward or update."""

from __future__ import annotations

from typing import Literal, TypeAlias

from staticgrad.compiler.kernel_ir.schedule import Schedule, stored_by, writes

Role: TypeAlias = Literal["forward", "backward", "update"]


def kernel_roles(schedule: Schedule) -> list[Role] | None:
    """Return the role of each kernel; None where it serves states alone."""
    needed = set(schedule.outputs) | set(schedule.finite)
    roles: list[Role] = []
    for kernel in reversed(schedule.kernels):
        if needed.intersection(writes(kernel)):
            roles.append("forward")
            needed.update(op.buffer for op in kernel.operands)
        else:
            roles.append("update" if stored_by(schedule, kernel) else "backward")
    return roles[::-1] if "backward" in roles else None
