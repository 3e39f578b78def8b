"""Title, note and legend above the picture of a graph.

Graphviz's SVG is set below them, its tooltips turned from ``xlink:title`` attributes
into ``title`` elements, which every browser shows, and the lower lines of its boxes
set in a smaller, lighter type.
"""

from __future__ import annotations

import re

from staticgrad.pictures.drawing import Drawing
from staticgrad.pictures.palette import BOXES
from staticgrad.pictures.svg_writer import FAINT, Canvas, number

MARGIN = 24.0
NARROWEST = 420.0
PIXELS_PER_POINT = 4 / 3

_OPENING = re.compile(r'<svg\b[^>]*viewBox="[\d.-]+ [\d.-]+ ([\d.]+) ([\d.]+)"[^>]*>')
_KEY = re.compile(r"<title>[^<]*</title>\n?")
_FAMILY = re.compile(r' font-family="[^"]*"')
_TOOLTIP = re.compile(r'<a xlink:title="([^"]*)">')


def draw_heading(canvas: Canvas, drawing: Drawing) -> None:
    """Write title, note and legend at the top of `canvas`."""
    canvas.text((MARGIN, 32), drawing.title, size=17, bold=True)
    canvas.text((MARGIN, 51), drawing.note, size=11, fill=FAINT)
    top = 60.0 if drawing.note else 44.0
    x = MARGIN
    for kind in legend(drawing):
        fill, stroke = BOXES[kind]
        width = len(kind) * 5.6 + 14
        canvas.rectangle((x, top), (width, 18), fill=fill, stroke=stroke, radius=4)
        canvas.text((x + width / 2, top + 13), kind, size=10, anchor="middle")
        x += width + 6


def heading_height(drawing: Drawing) -> float:
    """Return the height of title, note and legend."""
    return 92.0 if drawing.note else 76.0


def heading_width(drawing: Drawing) -> float:
    """Return the least width of a canvas with title, note and legend."""
    kinds = sum(len(kind) * 5.6 + 20 for kind in legend(drawing))
    texts = (len(drawing.title) * 9.5, len(drawing.note) * 6.0, kinds)
    return max(NARROWEST, 2 * MARGIN + max(texts))


def legend(drawing: Drawing) -> list[str]:
    """Return the kinds that occur, in the palette's order."""
    found = {box.kind for box in drawing.boxes}
    return [kind for kind in BOXES if kind in found]


def headed(drawing: Drawing, svg: str) -> str:
    """Return Graphviz's picture of `drawing` under its heading."""
    opening = _OPENING.search(svg)
    if opening is None:
        return svg
    points = opening.groups()
    wide, high = (float(length) * PIXELS_PER_POINT for length in points)
    width = max(wide, heading_width(drawing))
    top = heading_height(drawing)
    canvas = Canvas(width, high + top, drawing.title)
    draw_heading(canvas, drawing)
    inside = svg[opening.end() : svg.rindex("</svg>")]
    canvas.parts.append(
        f'<svg x="{number((width - wide) / 2)}" y="{number(top)}" '
        f'width="{number(wide)}" height="{number(high)}" '
        f'viewBox="0 0 {points[0]} {points[1]}" '
        f'xmlns:xlink="http://www.w3.org/1999/xlink">{_restyled(inside)}</svg>'
    )
    return canvas.document()


def _restyled(inside: str) -> str:
    """Add tooltips that every browser shows; shrink lower lines in boxes."""
    body = _TOOLTIP.sub(r"<a><title>\1</title>", _KEY.sub("", inside))
    body = _FAMILY.sub("", body)
    lines = body.split("\n")
    in_node, texts = False, 0
    for position, line in enumerate(lines):
        if line.startswith("<g id="):
            in_node = 'class="node"' in line or (in_node and "a_node" in line)
            texts = 0
        elif line.startswith("<text") and in_node:
            texts += 1
            lines[position] = _lower_line(line) if texts > 1 else line
    return "\n".join(lines)


def _lower_line(line: str) -> str:
    plain = line.replace(' font-weight="bold"', "").replace("11.00", "9.00")
    return re.sub(r'fill="[^"]*"', f'fill="{FAINT}"', plain)
