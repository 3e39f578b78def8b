"""Picture of a gradient report: the norm of each layer on a logarithmic scale."""

from __future__ import annotations

import math
import os
from pathlib import Path

from staticgrad.observe.gradient_report import NORMAL, GradientReport
from staticgrad.pictures.axes import Axes
from staticgrad.pictures.palette import LINES
from staticgrad.pictures.svg_writer import FAINT, GRID, Canvas, target_of
from staticgrad.pictures.xml_text import shorten

LEFT, TOP, RIGHT, BOTTOM = 70.0, 64.0, 24.0, 36.0
LETTERS = 18  # of a layer's name; rotated below the bars a letter takes so much:
LETTER_HEIGHT = 5.0
BAR, HEIGHT, LEAST_WIDTH = 26.0, 260.0, 320.0
LOWEST = -40.0  # zeros are drawn as 1e-40
LINE_HEIGHT = 18.0


def render_gradients(report: GradientReport, path: str | os.PathLike[str]) -> Path:
    """Write the picture of a gradient report as SVG; returns the path."""
    target = target_of(path)
    target.write_text(gradients_svg(report), encoding="utf-8")
    return target


def gradients_svg(report: GradientReport) -> str:
    """Return the picture of a gradient report as the text of an SVG document."""
    powers = [_power(layer.norm) for layer in report.layers]
    low = math.floor(min([*powers, math.log10(NORMAL[0])])) - 1.0
    high = math.ceil(max([*powers, math.log10(NORMAL[1])])) + 1.0
    width = max(BAR * len(powers), LEAST_WIDTH)
    lines = len(report.verdicts)
    names = [shorten(layer.name, LETTERS) for layer in report.layers]
    under = TOP + HEIGHT + BOTTOM + LETTER_HEIGHT * max(map(len, names), default=0)
    whole = under + LINE_HEIGHT * lines
    canvas = Canvas(LEFT + width + RIGHT, whole, "Norms of gradients")
    axes = Axes((LEFT, TOP), (width, HEIGHT), (0, max(len(powers), 1)), (low, high))
    title = f"Norms of gradients, {report.global_norm:.2g} altogether"
    canvas.text((LEFT, 32), title, size=16, bold=True)
    _draw_normal(canvas, axes, width)
    step = max(1, math.ceil((high - low) / 10))
    ticks = [float(n) for n in range(math.ceil(low), math.floor(high) + 1, step)]
    axes.draw_y(canvas, ticks, lambda tick: f"1e{tick:.0f}")
    for number, (layer, power) in enumerate(zip(report.layers, powers, strict=True)):
        top, bottom = axes.y(power), axes.y(low)
        left = axes.x(number) + (axes.x(1) - axes.x(0) - BAR * 0.7) / 2
        tooltip = f"{layer.name}: norm {layer.norm:.3g}, largest {layer.largest:.3g}"
        canvas.rectangle(
            (left, top), (BAR * 0.7, bottom - top), fill=LINES[0], tooltip=tooltip
        )
        place = (left + BAR * 0.35, bottom + 14)
        canvas.text(place, names[number], size=10, fill=FAINT, turn=60)
    for number, text in enumerate(report.verdicts):
        place = (LEFT, under + LINE_HEIGHT * number)
        canvas.text(place, shorten(text, 110), size=12)
    return canvas.document()


def _draw_normal(canvas: Canvas, axes: Axes, width: float) -> None:
    """Draw a band where the global norm is normal."""
    top, bottom = axes.y(math.log10(NORMAL[1])), axes.y(math.log10(NORMAL[0]))
    canvas.rectangle((LEFT, top), (width, bottom - top), fill=GRID)


def _power(norm: float) -> float:
    if not math.isfinite(norm):
        return -LOWEST
    return max(math.log10(norm), LOWEST) if norm > 0 else LOWEST
