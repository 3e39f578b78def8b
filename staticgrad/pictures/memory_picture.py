"""``render_memory``: the picture of a memory plan.

Kernels run from left to right, bytes of the arena from bottom to top. A rectangle is a
buffer: from the kernel that writes it first to the one that reads it last, at its
offset. The line is the number of bytes alive at each kernel; its peak is the lower
bound that no plan can undercut.
"""

from __future__ import annotations

import os
from pathlib import Path

from staticgrad.compiler.kernel_ir.plan import Plan
from staticgrad.pictures.axes import Axes, byte_ticks, round_ticks
from staticgrad.pictures.buffer_roles import Roles, buffer_roles
from staticgrad.pictures.palette import LINES
from staticgrad.pictures.svg_writer import FAINT, INK, Canvas, target_of
from staticgrad.pictures.xml_text import byte_text, shorten

WIDTH, HEIGHT = 1120.0, 660.0
LEFT, TOP = 96.0, 104.0
PLOT_WIDTH, PLOT_HEIGHT = 996.0, 440.0
NAMED_KERNELS = 48
FEWEST_BYTES = 64
PROOFS = {
    "bound": "proven least: equal to the bound of padded sizes",
    "exact": "proven least by exact search",
}


def render_memory(plan: Plan, path: str | os.PathLike[str]) -> Path:
    """Write the picture of a memory plan as SVG; returns the path."""
    target = target_of(path)
    target.write_text(memory_svg(plan), encoding="utf-8")
    return target


def memory_svg(plan: Plan) -> str:
    """Return the picture of a memory plan as the text of an SVG document."""
    kernels = len(plan.schedule.kernels)
    high = float(max(plan.arena_bytes, plan.lower_bound_bytes, FEWEST_BYTES))
    axes = Axes((LEFT, TOP), (PLOT_WIDTH, PLOT_HEIGHT), (0, max(kernels, 1)), (0, high))
    canvas = Canvas(WIDTH, HEIGHT, f"Memory plan: {byte_text(plan.arena_bytes)}")
    roles = buffer_roles(plan.schedule)
    _draw_heading(canvas, plan)
    _draw_legend(canvas, roles)
    axes.draw_y(canvas, byte_ticks(high), byte_text)
    for number, offset in enumerate(plan.offsets):
        if offset >= 0:
            _draw_buffer(canvas, axes, plan, number, roles)
    _draw_limits(canvas, axes, plan)
    _draw_kernels(canvas, axes, plan)
    return canvas.document()


def live_bytes(plan: Plan) -> list[int]:
    """Return the live bytes of the arena's buffers at each kernel, unpadded."""
    change = [0] * (len(plan.schedule.kernels) + 1)
    for number, offset in enumerate(plan.offsets):
        if offset >= 0:
            change[plan.first[number]] += plan.bytes[number]
            change[plan.last[number] + 1] -= plan.bytes[number]
    total, alive = 0, []
    for step in change[:-1]:
        total += step
        alive.append(total)
    return alive


def _draw_heading(canvas: Canvas, plan: Plan) -> None:
    buffers = sum(offset >= 0 for offset in plan.offsets)
    sizes = "".join(f" · {name} = {value:,}" for name, value in plan.values)
    title = f"Memory plan: {byte_text(plan.arena_bytes)} for {buffers:,} buffers"
    canvas.text((24, 34), title, size=18, bold=True)
    facts = [f"lower bound {byte_text(plan.lower_bound_bytes)}"]
    if plan.lower_bound_bytes:
        ratio = plan.arena_bytes / plan.lower_bound_bytes
        facts[0] += f" (arena is {ratio:.3f}x)"
    if plan.proof:
        facts.append(PROOFS[plan.proof])
    unplanned = f"unplanned {byte_text(plan.unplanned_bytes)}"
    if plan.arena_bytes:
        unplanned += f" ({plan.unplanned_bytes / plan.arena_bytes:.1f}x the arena)"
    facts += [unplanned, f"{len(plan.schedule.kernels):,} kernels{sizes}"]
    canvas.text((24, 56), " · ".join(facts), size=12, fill=FAINT)


def _draw_legend(canvas: Canvas, roles: Roles) -> None:
    x = 24.0
    for name, color in roles.colors.items():
        label = shorten(name, 24)
        canvas.rectangle((x, 70), (12, 12), fill=color, radius=3)
        canvas.text((x + 18, 80), label, size=11)
        x += 34 + len(label) * 6.2
    canvas.line([(x, 76), (x + 14, 76)], stroke=INK, width=1.4)
    canvas.text((x + 20, 80), "bytes alive", size=11)


def _draw_buffer(
    canvas: Canvas, axes: Axes, plan: Plan, number: int, roles: Roles
) -> None:
    buffer = plan.schedule.buffers[number]
    first, last, count = plan.first[number], plan.last[number], plan.bytes[number]
    left, top = axes.at(first, plan.offsets[number] + count)
    right, bottom = axes.at(last + 1, plan.offsets[number])
    width, height = max(right - left - 1, 0.6), max(bottom - top - 0.6, 0.6)
    shape = ", ".join(map(str, buffer.shape))
    kernels = plan.schedule.kernels
    tooltip = (
        f"{buffer.name}: {buffer.dtype.name}[{shape}], {byte_text(count)} "
        f"at {plan.offsets[number]:,}\n{roles.names[number]}, "
        f"from {first} {kernels[first].name} to {last} {kernels[last].name}"
    )
    color = roles.colors[roles.names[number]]
    canvas.rectangle(
        (left, top), (width, height), fill=color, radius=2, tooltip=tooltip
    )
    room = int((width - 8) / 6)
    if height >= 13 and room >= 4:
        middle = (left + 5, (top + bottom) / 2 + 4)
        canvas.text(middle, shorten(buffer.name, room), size=10, fill=INK)


def _draw_limits(canvas: Canvas, axes: Axes, plan: Plan) -> None:
    """Draw the live bytes, the arena's size and the lower bound."""
    alive = live_bytes(plan)
    steps = [
        axes.at(kernel + side, value)
        for kernel, value in enumerate(alive)
        for side in (0, 1)
    ]
    if len(steps) > 1:
        canvas.line(steps, stroke=INK, width=1.4, tooltip="bytes alive")
    right = LEFT + PLOT_WIDTH
    bound = axes.y(plan.lower_bound_bytes)
    canvas.line(
        [(LEFT, bound), (right, bound)],
        stroke=LINES[4],
        dash="6 4",
        tooltip=f"lower bound {byte_text(plan.lower_bound_bytes)}",
    )
    canvas.text((right, bound - 6), "lower bound", size=11, fill=LINES[4], anchor="end")


def _draw_kernels(canvas: Canvas, axes: Axes, plan: Plan) -> None:
    """Draw kernel numbers below the plot, with names where there is room."""
    kernels = plan.schedule.kernels
    bottom = TOP + PLOT_HEIGHT
    if len(kernels) <= NAMED_KERNELS:
        axes.draw_x(canvas, [], str)
        for number, kernel in enumerate(kernels):
            place = (axes.x(number + 0.5) + 4, bottom + 10)
            name = shorten(kernel.name, 22)
            canvas.text(place, name, size=10, fill=FAINT, anchor="end", turn=-50)
    else:
        ticks = [t for t in round_ticks(0, len(kernels), 10) if t == int(t)]
        axes.draw_x(canvas, ticks, lambda tick: f"{tick:.0f}")
        middle = LEFT + PLOT_WIDTH / 2
        canvas.text((middle, bottom + 40), "kernel", fill=FAINT, anchor="middle")
    _draw_commit(canvas, axes, plan.schedule.commit, len(kernels))


def _draw_commit(canvas: Canvas, axes: Axes, commit: int, kernels: int) -> None:
    if not 0 < commit < kernels:
        return
    x = axes.x(commit)
    canvas.line([(x, TOP), (x, TOP + PLOT_HEIGHT)], stroke=FAINT, dash="2 4")
    canvas.text((x - 5, TOP + 12), "commit", size=11, fill=FAINT, anchor="end")
