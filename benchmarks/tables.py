"""Tables as text."""

import math
from collections.abc import Callable, Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns aligned: the first to the left, the others to the right."""
    lines = [list(map(str, header)), *([str(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(_line(line, widths) for line in lines)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first = cells[0].ljust(widths[0])
    others = (c.rjust(w) for c, w in zip(cells[1:], widths[1:], strict=True))
    return "  ".join([first, *others]).rstrip()


def geometric_mean(numbers: Iterable[float]) -> float:
    """The exponential of the mean logarithm.

    >>> round(geometric_mean([1.0, 4.0]), 6)
    2.0
    """
    logs = [math.log(number) for number in numbers]
    return math.exp(sum(logs) / len(logs))


def times_faster(
    title: str,
    rows: Sequence[dict],
    peers: Iterable[str],
    show: Callable[[float | None], str],
) -> str:
    """The time of each row and peer that is there, and how many times ours it is."""
    there = [p for p in peers if any(p in row for row in rows)]
    lines = []
    for row in rows:
        cells = [row["name"], show(row["ours"])]
        for peer in there:
            found = row.get(peer)
            cells += [show(found), ratio(found and found / row["ours"])]
        lines.append(cells)
    means = ["geometric mean", ""]
    for peer in there:
        gains = [row[peer] / row["ours"] for row in rows if peer in row]
        means += ["", ratio(geometric_mean(gains))]
    header = (title, "ours", *(f"{peer}{t}" for peer in there for t in ("", " x")))
    return table(header, [*lines, means])


def duration(seconds: float | None) -> str:
    """With a unit and three digits.

    >>> duration(2.345e-6), duration(0.5), duration(None)
    ('2.35 us', '500 ms', '-')
    """
    if seconds is None:
        return "-"
    for unit, scale in (("ns", 1e9), ("us", 1e6), ("ms", 1e3)):
        if seconds * scale < 999.5:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds:.3g} s"


def ratio(number: float | None) -> str:
    """Two digits after the point."""
    return "-" if number is None else f"{number:.2f}"


def size(count: float) -> str:
    """Bytes with thousands' separators."""
    return f"{int(count):,}"
