"""What a kernel of a schedule that trains is for: it leads to an output, to new values
of parameters and states only, or it writes them.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from staticgrad.compiler.kernel_ir.schedule import Schedule, stored_by, writes

Role: TypeAlias = Literal["forward", "backward", "update"]


def kernel_roles(schedule: Schedule) -> list[Role] | None:
    """The role of each kernel; None where nothing but states is worked for."""
    needed = set(schedule.outputs) | set(schedule.finite)
    roles: list[Role] = []
    for kernel in reversed(schedule.kernels):
        if needed.intersection(writes(kernel)):
            roles.append("forward")
            needed.update(op.buffer for op in kernel.operands)
        else:
            roles.append("update" if stored_by(schedule, kernel) else "backward")
    return roles[::-1] if "backward" in roles else None
