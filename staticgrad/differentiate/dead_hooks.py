"""Warnings for hooks that are never called because their results are unused."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from weakref import ReferenceType

from staticgrad.errors import HookWarning
from staticgrad.ir.graph import homes, topological
from staticgrad.ir.node import Tensor
from staticgrad.ir.source import Source, at


class Hooks(list[tuple[Tensor, ReferenceType[Tensor], Source | None]]):
    """Of each hook in a Graph the tensor, the result and the user's line."""


def warn_of_dead_hooks(ys: Sequence[Tensor], wrt: Sequence[Tensor]) -> None:
    """A HookWarning for each hook on a tensor of `wrt` whose result nothing uses."""
    graphs = [g for g in homes((*ys, *wrt)) if g.record(Hooks)]
    if not graphs:
        return
    reached = {t for node in topological(ys) for t in node.outputs}
    for graph in graphs:
        unused = set(graph.ends)
        for x, result, source in graph.record(Hooks):
            y = result()
            if x in reached and (y is None or (y in unused and y not in reached)):
                warnings.warn(
                    f"on_gradient requires its result to be used, got {x.type} used in "
                    f"its place, so the hook is never called; write x = on_gradient(x, "
                    f"fn){at(source)}",
                    HookWarning,
                    stacklevel=3,
                )
