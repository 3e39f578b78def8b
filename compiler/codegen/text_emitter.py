"""A writer of indented lines of Python source."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

INDENT = "    "


class Writer:
    """Writer of lines at the current depth of indentation.

    >>> writer = Writer()
    >>> writer.line("for i in range(3):")
    >>> with writer.indented():
    ...     writer.line("print(i)", comment="a number")
    >>> print(writer.text(), end="")
    for i in range(3):
        print(i)  # a number
    """

    def __init__(self, depth: int = 0) -> None:
        self._lines: list[str] = []
        self._depth = depth

    def line(self, text: str, comment: str = "") -> None:
        """Write one line, with a comment behind it."""
        tail = f"  # {_one_line(comment)}" if comment else ""
        self._lines.append(f"{INDENT * self._depth}{text}{tail}")

    def comment(self, text: str) -> None:
        """Write a comment."""
        self._lines.append(f"{INDENT * self._depth}# {_one_line(text)}")

    def extend(self, other: Writer) -> None:
        """Write the lines of another writer, as they are."""
        self._lines.extend(other._lines)

    def nest(self, other: Writer) -> None:
        """Write the lines of another writer, deeper by the current depth."""
        self._lines.extend(f"{INDENT * self._depth}{line}" for line in other._lines)

    @contextmanager
    def indented(self) -> Iterator[None]:
        """Context in which lines are one level deeper."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def text(self) -> str:
        """Return all lines."""
        return "".join(f"{line}\n" for line in self._lines)


def canonical(source: str) -> str:
    r"""Return `source` without comments, equal for kernels that do the same.

    >>> canonical("# sum of x\nx = 1  # first\n")
    'x = 1\n'
    """
    lines = (line.split("  # ")[0] for line in source.splitlines())
    kept = (line for line in lines if line and not line.lstrip().startswith("#"))
    return "".join(f"{line}\n" for line in kept)


def _one_line(text: str) -> str:
    return " ".join(text.split())
