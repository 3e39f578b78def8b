"""Folding of drawings: several nodes in one box.

``folds(drawing)`` gives ever smaller ones, in this order:

1. short runs: elementwise nodes whose only reader is elementwise, of one scope, at most
   `SHORT` in a box; then runs of any length;
2. scopes: a module's nodes, at the deepest level that leaves at most `MOST` boxes;
3. blocks: stretches of the topological order, which fits every graph.

Folding scopes and blocks may close cycles between boxes.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence

from staticgrad.pictures.drawing import Arrow, Box, Drawing
from staticgrad.pictures.xml_text import shorten

MOST = 300
SHORT = 24


def folds(drawing: Drawing) -> Iterator[Drawing]:
    """Yield folded drawings of ever fewer boxes; the last has at most `MOST`."""
    short = fold_runs(drawing, SHORT)
    runs = fold_runs(short)
    scopes = fold_scopes(runs)
    previous = drawing
    for smaller in (short, runs, scopes, fold_blocks(scopes)):
        if len(smaller.boxes) < len(previous.boxes):
            yield smaller
            previous = smaller


def fold_runs(drawing: Drawing, most: int = sys.maxsize) -> Drawing:
    """Fold elementwise trees of at most `most` boxes into one box."""
    readers: list[set[int]] = [set() for _ in drawing.boxes]
    for arrow in drawing.arrows:
        readers[arrow.tail].add(arrow.head)
    group = list(range(len(drawing.boxes)))
    size = [1] * len(group)
    for position in reversed(range(len(group))):
        reader = readers[position].pop() if len(readers[position]) == 1 else position
        run = group[reader]
        fits = reader != position and size[run] < most
        if fits and _in_one_run(drawing.boxes[position], drawing.boxes[reader]):
            group[position] = run
            size[run] += 1
    return merge(drawing, group)


def _in_one_run(box: Box, reader: Box) -> bool:
    kinds = box.kind == reader.kind == "elementwise"
    return kinds and box.scope == reader.scope and not box.result


def fold_scopes(drawing: Drawing) -> Drawing:
    """Fold the nodes of a module into one box."""
    if not any(box.scope for box in drawing.boxes):
        return drawing
    depth = max(box.scope.count(".") + 1 for box in drawing.boxes)
    for level in range(depth, 0, -1):
        folded = merge(drawing, _scope_groups(drawing.boxes, level))
        if len(folded.boxes) <= MOST:
            break
    return folded


def _scope_groups(boxes: Sequence[Box], depth: int) -> list[int]:
    first: dict[str, int] = {}
    groups: list[int] = []
    for position, box in enumerate(boxes):
        path = ".".join(box.scope.split(".")[:depth])
        alone = not path or box.kind == "input"
        groups.append(position if alone else first.setdefault(path, position))
    return groups


def fold_blocks(drawing: Drawing, most: int = MOST) -> Drawing:
    """Fold stretches of the topological order into boxes, at most `most` in all."""
    size = -(-len(drawing.boxes) // most)
    groups = [position // size * size for position in range(len(drawing.boxes))]
    return merge(drawing, groups)


def merge(drawing: Drawing, group: Sequence[int]) -> Drawing:
    """Merge the boxes of one group, at the place of its first box."""
    members: dict[int, list[Box]] = {}
    for box, name in zip(drawing.boxes, group, strict=True):
        members.setdefault(name, []).append(box)
    if len(members) == len(drawing.boxes):
        return drawing
    number = {name: position for position, name in enumerate(members)}
    arrows = {
        (number[group[a.tail]], number[group[a.head]], a.update): a
        for a in reversed(drawing.arrows)
        if group[a.tail] != group[a.head]
    }
    return Drawing(
        drawing.title,
        tuple(map(_merged, members.values())),
        tuple(
            Arrow(tail, head, arrow.label, update)
            for (tail, head, update), arrow in reversed(arrows.items())
        ),
        drawing.note,
    )


def _merged(boxes: list[Box]) -> Box:
    if len(boxes) == 1:
        return boxes[0]
    count = sum(box.count for box in boxes)
    scopes = {box.scope for box in boxes}
    scope = scopes.pop() if len(scopes) == 1 else _common_scope(scopes)
    names = Counter(box.lines[0] for box in boxes)
    most = ", ".join(
        f"{name} x{n}" if n > 1 else name for name, n in names.most_common(12)
    )
    kinds = {box.kind for box in boxes}
    title = " · ".join(list(names)[:3]) + (" …" if len(names) > 3 else "")
    outer, _, inner = scope.rpartition(".")
    whole = scope and kinds != {"elementwise"}
    return Box(
        (shorten(inner if whole else title, 40), f"{count:,} nodes"),
        "elementwise" if kinds == {"elementwise"} else "folded",
        outer if whole else scope,
        shorten(f"{scope}\n{most}".strip(), 600),
        count,
        any(box.result for box in boxes),
    )


def _common_scope(scopes: set[str]) -> str:
    paths = [scope.split(".") for scope in scopes]
    common: list[str] = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return ".".join(common)
