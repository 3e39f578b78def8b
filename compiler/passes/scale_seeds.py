"""Learning rate applied to the cotangents where the backward pass begins.

A backward pass is linear in what it begins with. Where all that comes of it is scaled
by one number, as by the rate of plain descent, ``-rate * (g @ W) = (-rate * g) @ W``,
that number goes into the loss' own factor, and no cotangent is scaled any more.

Only where every use of a cotangent ends so: not where it is an output, is kept in a
moment or asked for its norm. Products with the rate are then rounded before sums
instead of after them. float16 and bfloat16 stay: the rate takes them below their range.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from staticgrad.compiler.passes.match import is_number, is_op
from staticgrad.ir.graph import Graph, deriving, rebuilt, rewritten, topological
from staticgrad.ir.node import Node, Tensor, seen_through
from staticgrad.ir.op import View
from staticgrad.ir.size import MINIBATCH, guessed, product
from staticgrad.ir.types import FLOAT32, FLOAT64
from staticgrad.ops.named import named

GAIN = 4  # elements that are scaled no more, for each one that is scaled instead

LINEAR = frozenset("negative reduce_sum guarded_multiply guarded_divide divide".split())
SUMS = frozenset(("add", "subtract"))
STEPS = frozenset(("add", "subtract", "matmul_add"))

Way = tuple[Tensor, ...]
"""Inputs of a node that scale its result if all of them are scaled."""


def scale_seeds(graph: Graph) -> Graph:
    """Rewrite ``-rate * (seed @ W) = (-rate * seed) @ W`` for whole passes."""
    for rate in dict.fromkeys(_rates(graph)):
        graph = _scaled_by(rate, graph)
    return graph


def _rates(graph: Graph) -> Iterator[Tensor]:
    """Yield the rates of steps that are added to updated leaves."""
    for leaf, new in graph.updates:
        if new.op.name in STEPS and any(x is leaf for x in new.node.inputs):
            for x in new.node.inputs:
                yield from (rate for rate, _ in _scalings(seen_through(x).node))


def _scalings(node: Node) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (number, tensor) where a node scales a tensor by plus or minus it."""
    if node.op.name == "multiply" and node.types[0].dtype in (FLOAT32, FLOAT64):
        for rate, x in (node.inputs, node.inputs[::-1]):
            if rate.ndim == 0 and x.ndim > 0:
                yield (rate.inputs[0] if is_op(rate, "negative") else rate), x


def _scaled_by(rate: Tensor, graph: Graph) -> Graph:
    scaling = _Scaling(graph, rate)
    needed, seeds = scaling.needed()
    pays = _total(set(scaling.ends.values())) >= GAIN * _total(seeds) > 0
    anew = needed - set(seeds)
    if not pays or not all(scaling.is_replaced(x, anew) for x in anew):
        return graph
    made = scaling.made(needed, seeds)
    new = rewritten(graph.nodes, lambda *_: None, replaced=made, nested=False)
    outputs = tuple(new.get(t, t) for t in graph.outputs)
    updates = tuple((leaf, new.get(t, t)) for leaf, t in graph.updates)
    return Graph.closed(graph.inputs, outputs, updates)


class _Scaling:
    """Products with one rate, and the tensors that could be scaled instead."""

    def __init__(self, graph: Graph, rate: Tensor) -> None:
        self.graph, self.rate, self.roots = graph, rate, set(graph.roots)
        shown = set(topological(graph.outputs))  # whose rounding must not change
        self.ends = {
            node: x
            for node in graph.nodes
            for r, x in _scalings(node)
            if r is rate and node not in shown
        }
        self.users: dict[Tensor, list[Node]] = {}
        for node in graph.nodes:
            for x in node.inputs:
                self.users.setdefault(x, []).append(node)
        self.ways = self._ways(self._led())

    def _led(self) -> set[Tensor]:
        """Return tensors of which every use is linear and ends in the rate."""
        led = set[Tensor]()

        def leads(user: Node, x: Tensor) -> bool:
            if self.ends.get(user) is x:
                return True
            return user.outputs[0] in led and any(_among(x, w) for w in _ways_of(user))

        for node in reversed(self.graph.nodes):
            for x in node.outputs:
                users = self.users.get(x, ())
                if (
                    x not in self.roots
                    and users
                    and all(leads(user, x) for user in users)
                ):
                    led.add(x)
        return led

    def _ways(self, led: set[Tensor]) -> dict[Tensor, Way]:
        """Return how each is scaled, by the fewest elements at its beginning."""
        seeds: dict[Tensor, frozenset[Tensor]] = {}
        found: dict[Tensor, Way] = {}

        def begins(way: Way) -> frozenset[Tensor]:
            return frozenset[Tensor]().union(
                *(seeds.get(x, frozenset((x,))) for x in way)
            )

        for node in self.graph.nodes:
            ways, x = _ways_of(node), node.outputs[0]
            if ways and x in led:
                known = [(begins(way), way) for way in ways]
                seeds[x], found[x] = min(known, key=lambda pair: _total(pair[0]))
        return found

    def needed(self) -> tuple[set[Tensor], list[Tensor]]:
        """Return tensors to be made anew, and those to be scaled for it."""
        left, seen = list(self.ends.values()), set[Tensor]()
        seeds: dict[Tensor, None] = {}
        while left:
            x = left.pop()
            if x not in seen:
                seen.add(x)
                left += self.ways.get(x, ())
                if x not in self.ways:
                    seeds[x] = None
        return seen, list(seeds)

    def is_replaced(self, x: Tensor, anew: set[Tensor]) -> bool:
        """Whether a tensor made `anew` replaces `x` everywhere.

        Else both would be made, and the backward pass twice.
        """
        return all(
            self.ends.get(user) is x
            or (user.outputs[0] in anew and _among(x, self.ways[user.outputs[0]]))
            for user in self.users[x]
        )

    def made(self, needed: set[Tensor], seeds: list[Tensor]) -> dict[Tensor, Tensor]:
        """Return the replacements of the products with the rate, and of differences."""
        with deriving() as derive_from:
            derive_from(self.rate.node)
            factor = named("negative", self.rate)
            scaled: dict[Tensor, Tensor] = {}
            for x in seeds:
                derive_from(x.node)
                scaled[x] = named("multiply", x, factor)
            for node in self.graph.nodes:
                x = node.outputs[0]
                if x in needed and x in self.ways:
                    way = self.ways[x]
                    inputs = (scaled[i] if _among(i, way) else i for i in node.inputs)
                    scaled[x] = rebuilt(node, tuple(inputs)).outputs[0]
            found: dict[Tensor, Tensor] = {}
            for node, x in self.ends.items():
                derive_from(node)
                found |= self._instead(node, scaled[x])
        return found

    def _instead(self, end: Node, scaled: Tensor) -> dict[Tensor, Tensor]:
        """Return the replacement of a product with the rate; minus it is `scaled`."""
        x = end.outputs[0]
        if any(is_op(factor, "negative") for factor in end.inputs if factor.ndim == 0):
            return {x: scaled}
        users = self.users.get(x, [])
        steps = all(u.op.name == "subtract" and u.inputs[0] is not x for u in users)
        if steps and x not in self.roots:
            return {u.outputs[0]: named("add", u.inputs[0], scaled) for u in users}
        return {x: named("negative", scaled)}


def _ways_of(node: Node) -> tuple[Way, ...]:
    """Return the ways to scale a node's result by scaling its inputs."""
    name, inputs = node.op.name, node.inputs
    if node.op.tangent == "multilinear" and inputs[0] is not inputs[1]:
        return (inputs[:1], inputs[1:])
    if name in SUMS:
        return (inputs,)
    if isinstance(node.op.code, View):
        return (inputs[:1],)
    if name in LINEAR and not _among(inputs[0], inputs[1:]):
        return (inputs[:1],)
    if name == "where" and is_number(inputs[1], 0.0):
        return (inputs[2:],)
    if name == "where" and is_number(inputs[2], 0.0):
        return (inputs[1:2],)
    return ()


def _among(x: Tensor, way: Way) -> bool:
    return any(x is one for one in way)


def _total(tensors: Iterable[Tensor]) -> int:
    """Return the number of their elements."""
    return sum(guessed(product(x.shape), MINIBATCH) for x in tensors)
