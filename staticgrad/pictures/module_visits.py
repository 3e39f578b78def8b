"""Visits: modules that are called several times get a cluster per call.

The gradient of a layer stands in the layer's scope, but far from its forward nodes: one
cluster around both would close cycles with the clusters between, and no layout from top
to bottom could show it. Visit n of a module holds the nodes that a path can reach only
after leaving the module n - 1 times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from staticgrad.pictures.drawing import Drawing

# The work is boxes times modules.
MOST_WORK = 2_000_000


def split_visits(drawing: Drawing) -> Drawing:
    """Return `drawing` with ``module (2)`` in the scopes of second visits etc."""
    tops = [box.scope.partition(".")[0] for box in drawing.boxes]
    modules = dict.fromkeys(top for top in tops if top)
    if len(modules) * len(tops) > MOST_WORK:
        return drawing
    reads: list[list[int]] = [[] for _ in tops]
    for arrow in drawing.arrows:
        if not arrow.update:
            reads[arrow.head].append(arrow.tail)
    boxes = list(drawing.boxes)
    for module in modules:
        inside = [top == module for top in tops]
        for position, visit in enumerate(visits(inside, reads)):
            if inside[position] and visit > 1:
                rest = boxes[position].scope.removeprefix(module)
                scope = f"{module} ({visit}){rest}"
                boxes[position] = replace(boxes[position], scope=scope)
    return replace(drawing, boxes=tuple(boxes))


def visits(inside: Sequence[bool], reads: Sequence[Sequence[int]]) -> list[int]:
    """Return how often a path to each box, in topological order, enters the module."""
    count: list[int] = []
    for position, here in enumerate(inside):
        most = 0
        for tail in reads[position]:
            enters = here and not inside[tail]
            most = max(most, count[tail] + enters)
        count.append(max(most, int(here)))
    return count
