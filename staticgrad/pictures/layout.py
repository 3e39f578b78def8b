"""Layout of text in Graphviz's language to SVG, in bounded time.

The program ``dot`` is used if it is on the PATH; where it is missing or fails, the same
Graphviz compiled to WebAssembly: the module `embedded`, which is loaded only then, as
the bindings of the engine take a tenth of the time in which the package loads.
Some layouts (many long arrows) take minutes: both are ended.
"""

from __future__ import annotations

import contextlib
import importlib
import shutil
import subprocess


class LayoutError(Exception):
    """Layout that failed or took too long."""


class LayoutTimeout(LayoutError):
    """Layout that took longer than allowed."""


def layout(text: str, seconds: float) -> str:
    """Return the SVG of a graph in Graphviz's language; raises LayoutError.

    `seconds` bounds the time of the layout itself; the first use of the embedded engine
    on a machine compiles it, which takes about a second more.
    """
    program = dot_program()
    if program is not None:
        with contextlib.suppress(_ProgramFailed):
            return _checked(run_program(program, text, seconds))
    return _checked(run_embedded(text, seconds))


def dot_program() -> str | None:
    """Return the path of ``dot``, if it is on the PATH."""
    return shutil.which("dot")


class _ProgramFailed(Exception):
    """Failure of the program to make a picture."""


def run_program(program: str, text: str, seconds: float) -> str:
    """Lay out by the program `dot`."""
    try:
        done = subprocess.run(
            [program, "-Tsvg"],
            input=text.encode(),
            capture_output=True,
            timeout=seconds,
            check=True,
        )
    except subprocess.TimeoutExpired:
        raise LayoutTimeout(f"the layout took over {seconds:g} s") from None
    except (OSError, subprocess.CalledProcessError) as error:
        raise _ProgramFailed from error
    if b"<svg" not in done.stdout:
        raise _ProgramFailed
    return done.stdout.decode(errors="replace")


def run_embedded(text: str, seconds: float) -> str:
    """Lay out by the packaged engine; raises LayoutError."""
    embedded = importlib.import_module("staticgrad.pictures.embedded_graphviz")
    return str(embedded.run(text, seconds))


def _checked(svg: str) -> str:
    if "<svg" not in svg:
        raise LayoutError("the layout gave no picture")
    return svg
