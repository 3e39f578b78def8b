"""Writer of SVG.

A Canvas collects shapes in the order of drawing and gives the text of a document with
a light background, whatever the page around it. All lengths are in pixels.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from staticgrad.errors import GraphError
from staticgrad.ir.source import at, here
from staticgrad.pictures.xml_text import escape

FONT = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"
INK = "#1e293b"
FAINT = "#64748b"
GRID = "#e2e8f0"
PAPER = "#ffffff"

Point = tuple[float, float]


def number(value: float) -> str:
    """Format with at most two decimals, without trailing zeros.

    >>> number(3.14159), number(2.0)
    ('3.14', '2')
    """
    return f"{value:.2f}".rstrip("0").rstrip(".")


def target_of(path: str | os.PathLike[str]) -> Path:
    """Return the path of a picture; GraphError for the suffix of another format."""
    target = Path(path)
    if target.suffix.lower() not in ("", ".svg"):
        raise GraphError(
            f"render requires a path that ends in .svg, got {target.name!r}; other "
            f"programs, such as cairosvg, convert SVG{at(here())}"
        )
    return target


@dataclass(slots=True)
class Canvas:
    """SVG drawing of `width` x `height`."""

    width: float
    height: float
    title: str
    parts: list[str] = field(default_factory=list)

    def rectangle(
        self,
        corner: Point,
        size: Point,
        *,
        fill: str,
        stroke: str = "none",
        radius: float = 0.0,
        tooltip: str = "",
    ) -> None:
        """Draw a box with the upper left corner `corner`."""
        (x, y), (width, height) = corner, size
        start = (
            f'<rect x="{number(x)}" y="{number(y)}" width="{number(width)}" '
            f'height="{number(height)}" rx="{number(radius)}" '
            f'fill="{escape(fill)}" stroke="{escape(stroke)}"'
        )
        self._add(start, "rect", tooltip)

    def line(
        self,
        points: Sequence[Point],
        *,
        stroke: str,
        width: float = 1.0,
        dash: str = "",
        tooltip: str = "",
    ) -> None:
        """Draw a line through `points`."""
        joined = " ".join(f"{number(x)},{number(y)}" for x, y in points)
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        start = (
            f'<polyline points="{joined}" fill="none" stroke="{escape(stroke)}" '
            f'stroke-width="{number(width)}" stroke-linejoin="round"{dashes}'
        )
        self._add(start, "polyline", tooltip)

    def dot(self, at: Point, radius: float, *, fill: str, tooltip: str = "") -> None:
        """Draw a filled circle."""
        start = (
            f'<circle cx="{number(at[0])}" cy="{number(at[1])}" '
            f'r="{number(radius)}" fill="{escape(fill)}"'
        )
        self._add(start, "circle", tooltip)

    def path(
        self, curve: str, *, stroke: str, dash: str = "", tooltip: str = ""
    ) -> None:
        """Draw a stroke along SVG path data that ends in an arrow head."""
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        start = (
            f'<path d="{curve}" fill="none" stroke="{escape(stroke)}"{dashes} '
            'marker-end="url(#head)"'
        )
        self._add(start, "path", tooltip)

    def text(
        self,
        at: Point,
        text: str,
        *,
        size: float = 12.0,
        fill: str = INK,
        anchor: str = "start",
        bold: bool = False,
        turn: float = 0.0,
    ) -> None:
        """Draw `text` at the baseline `at`, rotated clockwise by `turn` degrees."""
        weight = ' font-weight="bold"' if bold else ""
        place = f"{number(at[0])} {number(at[1])}"
        turned = f' transform="rotate({number(turn)} {place})"' if turn else ""
        self.parts.append(
            f'<text x="{number(at[0])}" y="{number(at[1])}" '
            f'font-size="{number(size)}" fill="{escape(fill)}" '
            f'text-anchor="{anchor}"{weight}{turned}>{escape(text)}</text>'
        )

    def document(self) -> str:
        """Return the SVG document."""
        width, height = number(self.width), number(self.height)
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" '
            f'height="{height}" viewBox="0 0 {width} {height}" '
            f'font-family="{FONT}">\n'
            f"<title>{escape(self.title)}</title>\n"
            f"<defs>{_ARROW_HEAD}</defs>\n"
            f'<rect width="{width}" height="{height}" fill="{PAPER}"/>\n'
        )
        return head + "\n".join(self.parts) + "\n</svg>\n"

    def _add(self, start: str, name: str, tooltip: str) -> None:
        if tooltip:
            self.parts.append(f"{start}><title>{escape(tooltip)}</title></{name}>")
        else:
            self.parts.append(f"{start}/>")


_ARROW_HEAD = (
    '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
    'markerHeight="7" orient="auto-start-reverse">'
    f'<path d="M0,0.8 L8,4 L0,7.2 z" fill="{FAINT}"/></marker>'
)
