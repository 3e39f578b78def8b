"""Row layout of drawings, in linear time.

A box stands one row below the lowest box that it reads; four sweeps order each row by
the mean position of the neighbours (Sugiyama, Tagawa, Toda 1981, the barycentre step).
Arrows are curves that may cross boxes. Used where Graphviz took too long.
"""

from __future__ import annotations

from collections.abc import Sequence

from staticgrad.pictures.drawing import Arrow, Box, Drawing
from staticgrad.pictures.heading import draw_heading, heading_height, heading_width
from staticgrad.pictures.palette import BOXES
from staticgrad.pictures.svg_writer import FAINT, Canvas, Point
from staticgrad.pictures.xml_text import shorten

BOX_HEIGHT = 36.0
ROW_HEIGHT = 64.0
GAP = 18.0
MARGIN = 24.0
CHARACTER = 6.6
WIDEST_ROW = 24
SWEEPS = 4
MOST_ASIDE = 240.0


def draw_rows(drawing: Drawing) -> str:
    """Return the drawing as an SVG document."""
    rows = ordered_rows(drawing)
    widths = [_width(box) for box in drawing.boxes]
    lengths = [sum(widths[b] + GAP for b in row) - GAP for row in rows]
    width = max([*lengths, heading_width(drawing)]) + 2 * MARGIN
    top = heading_height(drawing)
    canvas = Canvas(width, top + len(rows) * ROW_HEIGHT + MARGIN, drawing.title)
    corners: dict[int, Point] = {}
    for level, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        x = (width - length) / 2
        for box in row:
            corners[box] = (x, top + level * ROW_HEIGHT)
            x += widths[box] + GAP
    draw_heading(canvas, drawing)
    for arrow in drawing.arrows:
        _draw_arrow(canvas, arrow, corners, widths)
    for position, shown in enumerate(drawing.boxes):
        _draw_box(canvas, shown, corners[position], widths[position])
    return canvas.document()


def ordered_rows(drawing: Drawing) -> list[list[int]]:
    """Return boxes by row, each row in order from left to right."""
    forward = [a for a in drawing.arrows if a.tail < a.head and not a.update]
    level = [0] * len(drawing.boxes)
    for arrow in sorted(forward, key=lambda a: a.head):
        level[arrow.head] = max(level[arrow.head], level[arrow.tail] + 1)
    _lower_leaves(level, forward)
    rows: list[list[int]] = [[] for _ in range(max(level, default=-1) + 1)]
    for box, row in enumerate(level):
        rows[row].append(box)
    neighbours: list[list[int]] = [[] for _ in level]
    for arrow in forward:
        neighbours[arrow.tail].append(arrow.head)
        neighbours[arrow.head].append(arrow.tail)
    for sweep in range(SWEEPS):
        _sweep(rows, neighbours, downwards=sweep % 2 == 0)
    return [
        row[k : k + WIDEST_ROW] for row in rows for k in range(0, len(row), WIDEST_ROW)
    ]


def _lower_leaves(level: list[int], arrows: Sequence[Arrow]) -> None:
    """Move boxes without inputs to the level just above their first reader."""
    reads = {arrow.head for arrow in arrows}
    first: dict[int, int] = {}
    for arrow in arrows:
        below = level[arrow.head] - 1
        first[arrow.tail] = min(below, first.get(arrow.tail, below))
    for box, row in first.items():
        if box not in reads:
            level[box] = row


def _sweep(rows: list[list[int]], neighbours: list[list[int]], downwards: bool) -> None:
    place: dict[int, float] = {}
    for row in rows:
        place.update((box, k / len(row)) for k, box in enumerate(row))
    for row in rows if downwards else reversed(rows):
        wanted = {
            box: sum(place[n] for n in neighbours[box]) / len(neighbours[box])
            if neighbours[box]
            else place[box]
            for box in row
        }
        row.sort(key=wanted.__getitem__)
        place.update((box, k / len(row)) for k, box in enumerate(row))


def _width(box: Box) -> float:
    longest = max(len(shorten(line, 40)) for line in box.lines)
    return max(48.0, longest * CHARACTER + 16)


def _draw_arrow(
    canvas: Canvas, arrow: Arrow, corners: dict[int, Point], widths: Sequence[float]
) -> None:
    (x0, y0), (x1, y1) = corners[arrow.tail], corners[arrow.head]
    x0, x1 = x0 + widths[arrow.tail] / 2, x1 + widths[arrow.head] / 2
    y0 += BOX_HEIGHT
    bend = max(ROW_HEIGHT / 2, abs(y1 - y0) / 3)
    # Arrows over several rows curve, to clear the boxes between.
    aside = 0.0 if y1 - y0 < ROW_HEIGHT else min(40 + (y1 - y0) / 8, MOST_ASIDE)
    numbers = (x0, y0, x0 + aside, y0 + bend, x1 + aside, y1 - bend, x1, y1)
    curve = "M{:.1f},{:.1f} C{:.1f},{:.1f} {:.1f},{:.1f} {:.1f},{:.1f}".format(*numbers)
    stroke = BOXES["state"][1] if arrow.update else FAINT
    dash = "5 3" if arrow.update else ""
    canvas.path(curve, stroke=stroke, dash=dash, tooltip=arrow.label)


def _draw_box(canvas: Canvas, box: Box, corner: Point, width: float) -> None:
    fill, stroke = BOXES[box.kind]
    size = (width, BOX_HEIGHT)
    canvas.rectangle(
        corner, size, fill=fill, stroke=stroke, radius=6, tooltip=box.tooltip
    )
    middle = corner[0] + width / 2
    first, *rest = (shorten(line, 40) for line in box.lines)
    canvas.text(
        (middle, corner[1] + (15 if rest else 22)), first, anchor="middle", bold=True
    )
    for line in rest[:1]:
        canvas.text(
            (middle, corner[1] + 29), line, size=10, fill=FAINT, anchor="middle"
        )
