"""Verification of ControlKernels: how bodies meet their operands.

Every buffer of a body that comes from outside is one port; it has the dtype of its
operand and lies inside of it at every position; buffers written by a body are written
by the kernel. Counters are int64 scalars, conditions are bool scalars. The bodies
themselves are checked as schedules are.
"""

from __future__ import annotations

from collections.abc import Sequence

from staticgrad.compiler.kernel_ir.schedule import Buffer, ControlKernel, Port, Schedule
from staticgrad.compiler.verify.wellformed import check_operands
from staticgrad.compiler.verify.wellformed_body import Values, fail
from staticgrad.ir.op import snapshot_words
from staticgrad.ir.size import evaluate
from staticgrad.ir.types import BOOL, INT64, DType

OUTSIDE = ("input", "carry", "output")
BODIES = {"loop": 1, "repeat": 2, "replay": 2}
MOVING = ("loop", "replay")


def check_control(
    kernel: ControlKernel, buffers: Sequence[Buffer], values: Values
) -> None:
    """Raise CompilerBug if `kernel` breaks a rule when its symbols have `values`."""
    check_operands(kernel, buffers)
    _check_form(kernel, buffers)
    if len(kernel.ports) != len(kernel.bodies):
        fail(kernel, f"{len(kernel.ports)} lists of ports, {len(kernel.bodies)} bodies")
    for body, ports in zip(kernel.bodies, kernel.ports, strict=True):
        _check_body(kernel, body, ports)
        for port in ports:
            _check_port(kernel, body, port, buffers, values)
    for source, target in kernel.starts:
        _check_start(kernel, source, target, buffers)
    if any(k.fails for body in kernel.bodies for k in body.kernels) > kernel.fails:
        fail(kernel, "a body can fail, but it says it cannot")


def _check_form(kernel: ControlKernel, buffers: Sequence[Buffer]) -> None:
    wanted = BODIES.get(kernel.form, len(kernel.bodies))
    if not kernel.bodies or len(kernel.bodies) != wanted:
        fail(kernel, f"{len(kernel.bodies)} bodies for a {kernel.form}")
    mode = "read" if kernel.form == "branch" else "write"
    _check_scalar(kernel, buffers, kernel.counter, INT64, mode)
    if kernel.form == "replay":
        _check_scalar(kernel, buffers, kernel.steps, INT64, "read")
    if kernel.form == "repeat":
        _check_scalar(kernel, buffers, kernel.going, BOOL, "write")
    if kernel.form == "replay" or kernel.kept:
        _check_snapshots(kernel, buffers)
    operand = kernel.operands[kernel.arena]
    if buffers[operand.buffer].kind != "arena" or operand.mode != "write":
        fail(kernel, f"operand {kernel.arena} is no arena")


def _check_snapshots(kernel: ControlKernel, buffers: Sequence[Buffer]) -> None:
    if kernel.snapshots < 1:
        fail(kernel, f"{kernel.snapshots} snapshots")
    state = kernel.operands[kernel.state]
    if buffers[state.buffer].elements != snapshot_words(kernel.snapshots):
        fail(kernel, "its state has no room for the positions of its snapshots")
    for carry, room in kernel.kept:
        one, other = (buffers[kernel.operands[n].buffer] for n in (carry, room))
        if (
            one.elements * kernel.snapshots != other.elements
            or one.dtype != other.dtype
        ):
            fail(kernel, f"operand {room} has no room for {kernel.snapshots} snapshots")


def _check_scalar(
    kernel: ControlKernel,
    buffers: Sequence[Buffer],
    number: int,
    dtype: DType,
    mode: str,
) -> None:
    if not 0 <= number < len(kernel.operands):
        fail(kernel, f"operand {number} of {len(kernel.operands)}")
    operand = kernel.operands[number]
    shape = buffers[operand.buffer].shape
    if (operand.dtype, operand.mode, shape) != (dtype, mode, ()):
        fail(kernel, f"operand {number} is no {dtype} scalar that it can {mode}")


def _check_body(kernel: ControlKernel, body: Schedule, ports: Sequence[Port]) -> None:
    outside = [b.number for b in body.buffers if b.kind in OUTSIDE]
    if sorted(port.inner for port in ports) != outside:
        fail(kernel, f"ports for {[p.inner for p in ports]}, not for {outside}")
    if any(b.kind == "stored" for b in body.buffers):
        fail(kernel, "a body has a parameter or state of its own")
    if any(body.buffers[number].kind != "output" for number in body.outputs):
        fail(kernel, "a result of a body is no buffer of its own")
    if body.commit != len(body.kernels) or body.finite:
        fail(kernel, "a body commits or checks something of its own")


def _check_port(
    kernel: ControlKernel,
    body: Schedule,
    port: Port,
    buffers: Sequence[Buffer],
    values: Values,
) -> None:
    if not 0 <= port.operand < len(kernel.operands):
        fail(kernel, f"a port to operand {port.operand}: none such")
    operand, inner = kernel.operands[port.operand], body.buffers[port.inner]
    if inner.dtype != operand.dtype:
        fail(kernel, f"a port of {inner.dtype} to operand {port.operand}")
    if inner.kind != "input" and operand.mode == "read":
        fail(kernel, f"a body writes operand {port.operand}, its mode is read")
    if port.step != 0 and (kernel.form not in MOVING or inner.kind == "carry"):
        fail(kernel, f"the port to operand {port.operand} moves")
    length = evaluate(kernel.length, values)
    if port.step != 0 and length <= 0:
        return
    steps = length - 1 if port.step != 0 else 0
    last = steps * evaluate(port.step, values)
    size = evaluate(inner.elements, values)
    room = evaluate(buffers[operand.buffer].elements, values)
    if last < 0 or last + size > room:
        end = f"{last + size} of {room} elements"
        fail(kernel, f"operand {port.operand} is accessed up to {end}")


def _check_start(
    kernel: ControlKernel, source: int, target: int, buffers: Sequence[Buffer]
) -> None:
    one, other = kernel.operands[source], kernel.operands[target]
    same = buffers[one.buffer].elements == buffers[other.buffer].elements
    if one.dtype != other.dtype or not same or other.mode == "read":
        fail(kernel, f"operand {target} cannot start as operand {source}")
