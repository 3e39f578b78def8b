"""Axes of charts: round ticks and the grid behind the data."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from staticgrad.pictures.svg_writer import FAINT, GRID, Canvas, Point


def round_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return round numbers from `low` to `high`, 1, 2 or 5 times a power of ten apart.

    >>> round_ticks(0, 10)
    [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    """
    if not high > low:
        return [low]
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(s * power for s in (1, 2, 5, 10) if s * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(n * step, 12) for n in range(first, last + 1)]


def byte_ticks(high: float, most: int = 6) -> list[float]:
    """Return multiples of a power of two from 0 to `high` bytes.

    >>> byte_ticks(4096, 4)
    [0.0, 1024.0, 2048.0, 3072.0, 4096.0]
    """
    step = 2.0 ** math.ceil(math.log2(max(high, 1) / most))
    return [n * step for n in range(int(high // step) + 1)]


@dataclass(frozen=True, slots=True)
class Axes:
    """Rectangle on the canvas and the range of data that it shows."""

    corner: Point
    size: Point
    x_range: Point
    y_range: Point

    def at(self, x: float, y: float) -> Point:
        """Return the point of the canvas for a data point."""
        return self.x(x), self.y(y)

    def x(self, value: float) -> float:
        """Return the canvas position of an x value."""
        low, high = self.x_range
        return self.corner[0] + (value - low) / ((high - low) or 1.0) * self.size[0]

    def y(self, value: float) -> float:
        """Return the canvas position of a y value; up is more."""
        low, high = self.y_range
        share = (value - low) / ((high - low) or 1.0)
        return self.corner[1] + (1 - share) * self.size[1]

    def draw_y(
        self, canvas: Canvas, ticks: list[float], text: Callable[[float], str]
    ) -> None:
        """Draw horizontal grid lines with their values at the left."""
        left, right = self.corner[0], self.corner[0] + self.size[0]
        for tick in ticks:
            y = self.y(tick)
            canvas.line([(left, y), (right, y)], stroke=GRID)
            canvas.text(
                (left - 8, y + 4), text(tick), size=11, fill=FAINT, anchor="end"
            )

    def draw_x(
        self, canvas: Canvas, ticks: list[float], text: Callable[[float], str]
    ) -> None:
        """Draw the base line with values below it."""
        bottom = self.corner[1] + self.size[1]
        left = self.corner[0]
        canvas.line([(left, bottom), (left + self.size[0], bottom)], stroke=FAINT)
        for tick in ticks:
            x = self.x(tick)
            canvas.line([(x, bottom), (x, bottom + 4)], stroke=FAINT)
            canvas.text(
                (x, bottom + 18), text(tick), size=11, fill=FAINT, anchor="middle"
            )
