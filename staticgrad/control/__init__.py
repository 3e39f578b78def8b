"""Control flow: branches and loops whose bodies are nested graphs."""

from staticgrad.control.branches import cond, switch
from staticgrad.control.counted_loops import fori_loop, scan
from staticgrad.control.while_loops import while_loop

__all__ = ["cond", "fori_loop", "scan", "switch", "while_loop"]
