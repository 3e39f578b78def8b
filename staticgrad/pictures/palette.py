"""Palette: fill and stroke for each kind of box, line colours for charts."""

from __future__ import annotations

BOXES: dict[str, tuple[str, str]] = {
    "input": ("#dbeafe", "#2563eb"),
    "parameter": ("#fef3c7", "#d97706"),
    "state": ("#ffedd5", "#c2410c"),
    "constant": ("#e2e8f0", "#64748b"),
    "elementwise": ("#ffffff", "#64748b"),
    "reduction": ("#ede9fe", "#7c3aed"),
    "matmul": ("#dcfce7", "#16a34a"),
    "view": ("#f1f5f9", "#94a3b8"),
    "indexing": ("#cffafe", "#0891b2"),
    "random": ("#fce7f3", "#db2777"),
    "control": ("#ffe4e6", "#e11d48"),
    "folded": ("#e0e7ff", "#4f46e5"),
}

LINES = ("#2563eb", "#ea580c", "#16a34a", "#9333ea", "#db2777", "#0891b2")
