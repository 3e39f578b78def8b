"""Pictures as SVG: graphs, memory plans, training histories, norms of gradients.

Importing this package installs the renderers: ``f.memory.render(path)``, and the
pictures of graphs and memory plans in notebooks. Layout engines are started when a
graph is drawn, not before.
"""

from __future__ import annotations

import os
from pathlib import Path

from staticgrad.compiler.runtime.executable import Memory
from staticgrad.ir.graph import Graph
from staticgrad.observe.gradient_report import GradientReport
from staticgrad.pictures.gradient_picture import gradients_svg, render_gradients
from staticgrad.pictures.graph_picture import graph_svg, render
from staticgrad.pictures.history_picture import history_svg, render_history
from staticgrad.pictures.memory_picture import memory_svg, render_memory

__all__ = [
    "gradients_svg", "graph_svg", "history_svg", "memory_svg", "render",
    "render_gradients", "render_history", "render_memory",
]  # fmt: skip


def _render(memory: Memory, path: str | os.PathLike[str]) -> Path:
    """Write the picture of the memory plan as SVG; returns the path."""
    return render_memory(memory.plan, path)


def _memory_svg(memory: Memory) -> str:
    return memory_svg(memory.plan)


# setattr, as the classes do not declare what they are given here.
for _class, _name, _function in (
    (GradientReport, "_repr_svg_", gradients_svg),
    (GradientReport, "render", render_gradients),
    (Graph, "_repr_svg_", graph_svg),
    (Memory, "_repr_svg_", _memory_svg),
    (Memory, "render", _render),
):
    setattr(_class, _name, _function)
