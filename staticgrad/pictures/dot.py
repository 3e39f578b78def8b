"""Text of a Drawing in Graphviz's language.

Scopes become nested clusters. Shapes stand on the arrows of small drawings; in large
ones, where labels would cost the layout much time, they are in the arrows' tooltips.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from staticgrad.ir.lazy_module import Later
from staticgrad.pictures.drawing import Box, Drawing
from staticgrad.pictures.palette import BOXES
from staticgrad.pictures.svg_writer import FAINT, INK
from staticgrad.pictures.xml_text import clean, shorten

if TYPE_CHECKING:
    import graphviz
else:
    graphviz = Later("graphviz")

LABELLED_ARROWS = 160
# Arrows from other boxes are kept short and straight.
LEAVES = ("constant", "parameter", "state")
CLUSTERS = ("#f8fafc", "#eef2f7")


def dot_text(drawing: Drawing) -> str:
    """Return the drawing in Graphviz's language."""
    dot = graphviz.Digraph(
        graph_attr={
            "bgcolor": "white", "fontname": "Helvetica", "pad": "0.25",
            "nodesep": "0.22", "ranksep": "0.22",
        },
        node_attr={
            "shape": "box", "style": "rounded,filled", "fontname": "Helvetica-Bold",
            "fontsize": "11", "fontcolor": INK, "height": "0.3", "margin": "0.12,0.05",
        },
        edge_attr={
            "color": FAINT, "arrowsize": "0.6", "fontname": "Helvetica",
            "fontsize": "9", "fontcolor": FAINT,
        },
    )  # fmt: skip
    _add_boxes(dot, drawing)
    _add_arrows(dot, drawing)
    return str(dot.source)


def _add_boxes(dot: graphviz.Digraph, drawing: Drawing) -> None:
    """Innermost clusters first, so that each is finished before it is nested."""
    clusters: dict[str, graphviz.Digraph] = {"": dot}
    for path in sorted({box.scope for box in drawing.boxes}, key=scope_depth):
        for prefix in prefixes(path):
            clusters.setdefault(prefix, _cluster(prefix, len(clusters)))
    for position, box in enumerate(drawing.boxes):
        clusters[box.scope].node(f"n{position}", **_style(box))
    for path in sorted(clusters, key=scope_depth, reverse=True):
        if path:
            clusters[path.rpartition(".")[0]].subgraph(clusters[path])


def scope_depth(path: str) -> int:
    """Return the number of clusters around a box of this scope."""
    return path.count(".") + 1 if path else 0


def prefixes(path: str) -> list[str]:
    """Return a scope and all scopes around it, the outermost first.

    >>> prefixes("a.b.c")
    ['a', 'a.b', 'a.b.c']
    """
    parts = path.split(".") if path else []
    return [".".join(parts[: n + 1]) for n in range(len(parts))]


def _cluster(path: str, number: int) -> graphviz.Digraph:
    name = shorten(clean(path.rpartition(".")[2]), 40)
    return graphviz.Digraph(
        f"cluster_{number}",
        graph_attr={
            "label": graphviz.escape(name), "style": "rounded,filled",
            "fillcolor": CLUSTERS[scope_depth(path) % 2], "color": "#cbd5e1",
            "fontsize": "10", "fontcolor": FAINT, "labeljust": "l",
            "tooltip": graphviz.escape(clean(path)), "margin": "8",
        },
    )  # fmt: skip


def _style(box: Box) -> dict[str, str]:
    fill, stroke = BOXES[box.kind]
    lines = "\n".join(shorten(clean(line), 60) for line in box.lines if line)
    return {
        "label": graphviz.escape(lines),
        "fillcolor": fill,
        "color": stroke,
        "penwidth": "2.4" if box.result else "1",
        "tooltip": graphviz.escape(clean(box.tooltip)),
        "peripheries": "2" if box.count > 1 else "1",
    }


def _add_arrows(dot: graphviz.Digraph, drawing: Drawing) -> None:
    labelled = len(drawing.arrows) <= LABELLED_ARROWS
    for arrow in drawing.arrows:
        text = graphviz.escape(clean(arrow.label))
        style = {"tooltip": text, "labeltooltip": text}
        if labelled:
            style["label"] = graphviz.escape(f"  {clean(arrow.label)}  ")
        tail, head = drawing.boxes[arrow.tail], drawing.boxes[arrow.head]
        if tail.kind not in LEAVES:
            style |= {"weight": "8", "minlen": "1" if tail.scope == head.scope else "2"}
        if arrow.update:
            style |= {"style": "dashed", "color": BOXES["state"][1]}
            style |= {"constraint": "false"}
        dot.edge(f"n{arrow.tail}", f"n{arrow.head}", **style)
