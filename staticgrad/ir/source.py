"""Source locations: the user's line that made a node."""

from __future__ import annotations

import os
import sys
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType

import numpy as np

_PACKAGE = str(Path(__file__).resolve().parent.parent)
_COMPILER = str(Path(_PACKAGE).parent / "compiler")
_SITE = Path(np.__file__).resolve().parent.parent
_CALLERS = [str(_SITE / name) for name in ("numpy", "scipy", "numba")]
# our packages, and those that call us for a line of the user's
_HIDDEN = tuple(folder + os.sep for folder in (_PACKAGE, _COMPILER, *_CALLERS))
_LIBRARY = str(Path(os.__file__).resolve().parent) + os.sep  # copy, pickle, functools
_INSTALLED = ("site-packages", "dist-packages")


@dataclass(frozen=True, slots=True)
class Source:
    """File and line of the user's code, and the public function called there.

    `call` is set where the op's name says little: "take" for a check of indices.
    """

    file: str
    line: int
    function: str
    call: str = ""

    def __str__(self) -> str:
        return f"{os.path.basename(self.file)}:{self.line}"


@dataclass(slots=True)
class Origin:
    """Line and scope that nodes derived from a node inherit."""

    source: Source | None = None
    scope: str = ""


# the open Origin, if nodes are being derived from nodes
DERIVED: ContextVar[Origin | None] = ContextVar("derived", default=None)


def here() -> Source | None:
    """Return the line of the node derived from, else the user's innermost line."""
    origin = DERIVED.get()
    if origin is not None:
        return origin.source
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _hidden(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return None
    code = frame.f_code
    return Source(code.co_filename, frame.f_lineno, code.co_qualname)


@cache
def _hidden(file: str) -> bool:
    """Whether a file is not part of the user's program."""
    if file.startswith(_LIBRARY):
        return not file.startswith(_INSTALLED, len(_LIBRARY))
    return file.startswith(_HIDDEN)


def called(source: Source | None, name: str) -> str:
    """Return the function that the user called, or else `name`."""
    return name if source is None or not source.call else source.call


def at(source: Source | None) -> str:
    """Return `` at trainer.py:41``, or nothing if the line is unknown."""
    return "" if source is None else f"  at {source}"
