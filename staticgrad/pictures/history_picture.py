"""``render_history``: loss and accuracy by epoch, one panel per quantity."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from staticgrad.pictures.axes import Axes, round_ticks
from staticgrad.pictures.palette import LINES
from staticgrad.pictures.svg_writer import FAINT, Canvas, target_of
from staticgrad.pictures.xml_text import shorten

PANEL_WIDTH, PANEL_HEIGHT = 420.0, 250.0
LEFT, TOP, RIGHT, BOTTOM = 70.0, 74.0, 24.0, 52.0
COLUMNS = 2
MARKED_POINTS = 60
HELD_OUT = "val_"


def render_history(
    history: Mapping[str, npt.ArrayLike], path: str | os.PathLike[str]
) -> Path:
    """Write the curves that ``Trainer.fit`` returns as SVG; returns the path.

    `history` maps names to one number per epoch. ``loss`` and ``val_loss`` share a
    panel, as do the other pairs.
    """
    target = target_of(path)
    target.write_text(history_svg(history), encoding="utf-8")
    return target


def history_svg(history: Mapping[str, npt.ArrayLike]) -> str:
    """Return the curves of a history as the text of an SVG document."""
    curves = {k: np.atleast_1d(np.asarray(v, float)) for k, v in history.items()}
    panels = list(dict.fromkeys(name.removeprefix(HELD_OUT) for name in curves))
    columns = min(max(len(panels), 1), COLUMNS)
    rows = -(-max(len(panels), 1) // COLUMNS)
    cell_width = LEFT + PANEL_WIDTH + RIGHT
    cell_height = TOP + PANEL_HEIGHT + BOTTOM
    canvas = Canvas(columns * cell_width, rows * cell_height, "Training history")
    for position, name in enumerate(panels):
        row, column = divmod(position, COLUMNS)
        corner = (column * cell_width + LEFT, row * cell_height + TOP)
        pair = {k: curves[k] for k in (name, HELD_OUT + name) if k in curves}
        _draw_panel(canvas, corner, name, pair)
    return canvas.document()


def _draw_panel(
    canvas: Canvas,
    corner: tuple[float, float],
    name: str,
    curves: dict[str, npt.NDArray[np.float64]],
) -> None:
    epochs = max(len(values) for values in curves.values())
    low, high = _value_range(list(curves.values()))
    size = (PANEL_WIDTH, PANEL_HEIGHT)
    axes = Axes(corner, size, (1, max(epochs, 2)), (low, high))
    x, y = corner
    canvas.text((x, y - 40), shorten(name, 40), size=16, bold=True)
    axes.draw_y(canvas, round_ticks(low, high), lambda tick: f"{tick:g}")
    ticks = [t for t in round_ticks(1, max(epochs, 2), 8) if t == int(t)]
    axes.draw_x(canvas, ticks, lambda tick: f"{tick:.0f}")
    canvas.text(
        (x + PANEL_WIDTH / 2, y + PANEL_HEIGHT + 38),
        "epoch",
        fill=FAINT,
        anchor="middle",
    )
    for position, (key, values) in enumerate(curves.items()):
        color = LINES[position]
        _draw_curve(canvas, axes, key, values, color)
        label = "held out" if key.startswith(HELD_OUT) else "training"
        left = x + position * 190
        canvas.line([(left, y - 20), (left + 18, y - 20)], stroke=color, width=2.4)
        text = f"{label}, last {values[-1]:.4g}" if len(values) else label
        canvas.text((left + 24, y - 16), text, size=11)


def _value_range(curves: list[npt.NDArray[np.float64]]) -> tuple[float, float]:
    values = np.concatenate(curves)
    values = values[np.isfinite(values)]
    if not len(values):
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    if high - low < 1e-12 * max(abs(high), 1.0):
        return low - 0.5, high + 0.5
    margin = (high - low) * 0.05
    return low - margin, high + margin


def _draw_curve(
    canvas: Canvas,
    axes: Axes,
    name: str,
    values: npt.NDArray[np.float64],
    color: str,
) -> None:
    """Draw a line through the finite values, with gaps at the others."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for epoch, value in enumerate(values, start=1):
        if not np.isfinite(value):
            pieces.append([])
            continue
        pieces[-1].append(axes.at(epoch, float(value)))
        if len(values) <= MARKED_POINTS:
            tooltip = f"{name} {value:.6g} at epoch {epoch}"
            canvas.dot(pieces[-1][-1], 2.6, fill=color, tooltip=tooltip)
    for piece in pieces:
        if len(piece) > 1:
            canvas.line(piece, stroke=color, width=2, tooltip=name)
