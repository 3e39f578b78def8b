"""``render``: the picture of a graph, folded where the layout takes too long."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from staticgrad.ir.graph import Graph
from staticgrad.ir.node import Tensor
from staticgrad.pictures.dot import dot_text
from staticgrad.pictures.drawing import Drawing, draw
from staticgrad.pictures.folding import folds
from staticgrad.pictures.heading import headed
from staticgrad.pictures.layout import LayoutError, LayoutTimeout, layout
from staticgrad.pictures.module_visits import split_visits
from staticgrad.pictures.row_layout import draw_rows
from staticgrad.pictures.svg_writer import target_of

# The whole, short runs, runs, modules, stretches.
ATTEMPTS = 5

# More boxes are unreadable.
MOST_BOXES = 2000


def render(
    shown: Graph | Tensor | Sequence[Tensor] | Mapping[str, Tensor],
    path: str | os.PathLike[str],
    *,
    seconds: float = 10.0,
) -> Path:
    """Write the picture of a graph as SVG.

    `shown` is a Graph, a Tensor (everything it is made of), or several Tensors. Nodes
    are grouped by module and coloured by kind; the user's line is in the tooltip.
    `seconds` bounds the time of the layout: a graph that needs more is drawn with
    elementwise runs, then modules, then stretches of nodes folded into one box, which
    the picture's heading says. Returns the path.

    >>> import staticgrad as sg, tempfile
    >>> with sg.Graph() as graph:
    ...     x = sg.input("x", ("batch", 3))
    ...     y = sg.tanh(x)
    >>> sg.render(graph, tempfile.mkdtemp() + "/graph.svg").name
    'graph.svg'
    """
    target = target_of(path)
    target.write_text(graph_svg(shown, seconds), encoding="utf-8")
    return target


def graph_svg(
    shown: Graph | Tensor | Sequence[Tensor] | Mapping[str, Tensor],
    seconds: float = 10.0,
) -> str:
    """Return the picture of a graph as the text of an SVG document."""
    whole = split_visits(draw(shown))
    reason = ""
    drawing = whole
    for drawing in itertools.chain([whole], folds(whole)):
        if len(drawing.boxes) > MOST_BOXES:
            reason = f"more than {MOST_BOXES:,} boxes"
            continue
        noted = drawing.with_note(_note(drawing, reason))
        try:
            return headed(noted, layout(dot_text(noted), seconds / ATTEMPTS))
        except LayoutTimeout:
            reason = f"Graphviz took over {seconds / ATTEMPTS:g} s"
        except LayoutError:
            reason = "Graphviz failed"
    return draw_rows(drawing.with_note(_note(drawing, reason)))


def _note(drawing: Drawing, reason: str) -> str:
    folded = len(drawing.boxes) < drawing.nodes
    if not reason:
        return ""
    return f"{'Folded' if folded else 'Plain layout'}: {reason}."
