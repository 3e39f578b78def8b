"""Pictures as SVG: graphs, memory plans, training histories, norms of gradients.

``f.memory.render(path)``, ``report.render(path)`` and what notebooks show of graphs,
plans and reports come here when they are asked for. Layout engines are started when a
graph is drawn, not before.
"""

from staticgrad.pictures.gradient_picture import gradients_svg, render_gradients
from staticgrad.pictures.graph_picture import graph_svg, render
from staticgrad.pictures.history_picture import history_svg, render_history
from staticgrad.pictures.memory_picture import memory_svg, render_memory

__all__ = [
    "gradients_svg", "graph_svg", "history_svg", "memory_svg", "render",
    "render_gradients", "render_history", "render_memory",
]  # fmt: skip
