"""``explain_gradient``: the paths of a gradient, and where it is cut.

A path is a chain of operations from a tensor to the result, through which derivatives
pass. Where one reads the tensor, or what is made of it, and passes no derivative on,
the path is cut: by an operation whose derivative is zero everywhere (rint, argmax), by
integers and bools, or by stop_gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from staticgrad.differentiate.cuts import Cut, cuts, passes
from staticgrad.differentiate.gradients import check_arguments, describe
from staticgrad.ir.graph import topological
from staticgrad.ir.node import Input, Node, Stored, Tensor
from staticgrad.ir.source import at
from staticgrad.ir.types import is_float

SHOWN = 10  # paths listed by default


@dataclass(frozen=True, slots=True)
class GradientPaths:
    """Result of explain_gradient; its string is a report.

    `count` is the number of paths, `paths` the first of them, each the nodes from the
    tensor to the result. `cuts` are the nodes that end other paths.
    """

    y: Tensor
    x: Tensor
    count: int
    paths: tuple[tuple[Node, ...], ...]
    cuts: tuple[Cut, ...]

    def __bool__(self) -> bool:
        return self.count > 0

    def __str__(self) -> str:
        lines = [f"gradient of {describe(self.y)}", f"for {describe(self.x)}"]
        lines.append(self._verdict())
        for number, path in enumerate(self.paths, 1):
            lines.append(f"  {number}: {' -> '.join(_steps(self.x, path))}")
        if self.count > len(self.paths):
            lines.append(f"  and {self.count - len(self.paths)} more")
        lines += [f"  cut by {cut}" for cut in self.cuts]
        return "\n".join(lines)

    def _verdict(self) -> str:
        if self.count:
            many = "path" if self.count == 1 else "paths, whose gradients are added"
            return f"{self.count} {many}:"
        if self.cuts:
            return "no path: the gradient is zero everywhere"
        return "no path: the result does not use it"


def explain_gradient(y: Tensor, x: Tensor, limit: int = SHOWN) -> GradientPaths:
    """Explain how the gradient of `y` reaches `x`: every path, or what cuts it.

    `y` and `x` are float tensors; `limit` is how many paths are listed. The result
    prints as text, is true if there is a path, and holds `count`, `paths` and `cuts`.

    >>> import staticgrad as sg
    >>> x = sg.parameter([1.0, 2.0], name="x")
    >>> found = sg.explain_gradient(sg.sum(sg.rint(x)), x)
    >>> bool(found), found.cuts[0].node.op.name
    (False, 'rint')
    """
    check_arguments("explain_gradient", [y], [x], "error")
    nodes = topological([y])
    ways = _ways(nodes, y)
    paths = tuple(_paths(nodes, ways, y, x, limit))
    count = ways.get(x, 0)
    return GradientPaths(y, x, count, paths, tuple(cuts(nodes, x)))


def _ways(nodes: Sequence[Node], y: Tensor) -> dict[Tensor, int]:
    """Return the number of paths from each tensor to `y`."""
    ways: dict[Tensor, int] = {y: 1}
    for node in reversed(nodes):
        below = sum(ways.get(t, 0) for t in node.outputs if is_float(t.dtype))
        if not below:
            continue
        for position, tensor in enumerate(node.inputs):
            if passes(node, position):
                ways[tensor] = ways.get(tensor, 0) + below
    return ways


def _paths(
    nodes: Sequence[Node], ways: Mapping[Tensor, int], y: Tensor, x: Tensor, limit: int
) -> Iterator[tuple[Node, ...]]:
    """Yield the first paths, those with the fewest lines of the user first."""
    readers: dict[Tensor, list[Node]] = {}
    for node in nodes:
        for position, tensor in enumerate(node.inputs):
            known = readers.setdefault(tensor, [])
            if passes(node, position):
                known.append(node)
    left: list[tuple[Tensor, tuple[Node, ...]]] = [(x, ())]
    found = 0
    while left and found < limit:
        tensor, path = left.pop()
        if tensor is y:
            found += 1
            yield path
            continue
        for node in reversed(readers.get(tensor, ())):
            for output in node.outputs:
                if ways.get(output):
                    left.append((output, (*path, node)))


def _steps(x: Tensor, path: Sequence[Node]) -> Iterator[str]:
    """Yield a path's tensor and operations, merged by line and module."""
    yield x.name if isinstance(x, Input | Stored) else x.op.name
    for (source, scope), nodes in groupby(path, lambda n: (n.source, n.scope)):
        names = ", ".join(node.op.name for node in nodes)
        where = at(source).replace("  at ", " ")
        yield f"{names}{where} in {scope}" if scope else f"{names}{where}"
