"""Graphs, and ``apply``, which adds a node: errors get op, types and the user's line.

Passes rewrite a Graph; users open an OpenGraph with ``with``.
A Graph is a frozen value: inputs, outputs, updates. An OpenGraph collects them, and
names and scopes, inside ``with``. Nodes belong to no graph; a graph's nodes are those
that its outputs and updates reach.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from operator import attrgetter
from typing import Any, Protocol, TypeVar, cast
from weakref import ReferenceType, ref

import numpy.typing as npt

from staticgrad.errors import DTypeError, GraphError, ShapeError
from staticgrad.ir.lazy_module import Later
from staticgrad.ir.node import Input, Node, Parameter, State, Stored, Tensor
from staticgrad.ir.op import VARIABLE, Extent, Op
from staticgrad.ir.source import DERIVED, Origin, Source, at, here
from staticgrad.ir.types import FLOAT32, DType, TensorType, as_dtype

pictures = Later("staticgrad.pictures")  # a notebook asks a graph for its picture


Update = tuple[Stored, Tensor]
Record = TypeVar("Record")


class Precision(Protocol):
    """Policy of the dtypes in which an op runs; see amp.py."""

    def operands(self, op: Op, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return `inputs`, cast where `op` runs in another dtype."""


PRECISION: ContextVar[Precision | None] = ContextVar("precision", default=None)
"""Precision policy of operations that users build; passes and derivatives have none."""

_is_weak = attrgetter("weak")

_OPEN: ContextVar[OpenGraph | None] = ContextVar("open graph", default=None)
_SCOPE: ContextVar[str] = ContextVar("scope", default="")


class Graph:
    """Computation: inputs, outputs and updates of stored leaves.

    What makes a graph may keep a `record` with it; graphs made from it have none.
    """

    __slots__ = ("__weakref__", "_order", "inputs", "outputs", "records", "updates")

    inputs: tuple[Input, ...]
    outputs: tuple[Tensor, ...]
    updates: tuple[Update, ...]
    records: dict[type, Any]
    _order: tuple[Node, ...] | None

    @staticmethod
    def closed(
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        updates: Sequence[Update] = (),
    ) -> Graph:
        """Make a finished graph, for passes."""
        graph = Graph()
        graph.inputs = tuple(inputs)  # type: ignore[arg-type]
        graph.outputs = tuple(outputs)
        graph.updates = tuple(updates)
        graph.records = {}
        graph._order = None
        return graph

    def __repr__(self) -> str:
        inputs = ", ".join(f"{leaf.name}: {leaf.type}" for leaf in self.inputs)
        return f"Graph({inputs or 'no inputs'})"

    def record(self, kind: type[Record]) -> Record:
        """The one `kind` that is kept with this graph, made when first asked for."""
        return cast(Record, self.records.setdefault(kind, kind()))

    @property
    def roots(self) -> tuple[Tensor, ...]:
        """Outputs and new values: everything that has to be computed."""
        return self.outputs + tuple(new for _, new in self.updates)

    def uses(self) -> Counter[Tensor]:
        """Count how often each tensor is an input of a node or a root."""
        found = Counter(tensor for node in self.nodes for tensor in node.inputs)
        found.update(self.roots)
        return found

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Every node that the roots reach, inputs before users; nested ones aside."""
        if self._order is None:
            self._order = topological(self.roots)
        return self._order


class OpenGraph(Graph):
    """A graph that users build: ``with sg.Graph() as graph:``.

    What is made inside belongs to it: inputs, updates, parameters and states. ``seed``
    starts the initial values of layers, ``dtype`` is the default of inputs, zeros,
    ones, eye and linspace, ``amp`` a policy of mixed precision for what is built
    inside.

    >>> import staticgrad as sg
    >>> with sg.Graph(seed=0) as graph:
    ...     x = sg.input("x", ("batch", 3))
    >>> [i.name for i in graph.inputs]
    ['x']
    """

    def __init__(
        self,
        seed: int = 0,
        dtype: npt.DTypeLike = "float32",
        amp: Precision | None = None,
    ) -> None:
        self.seed = seed
        self.amp = amp
        self.dtype: DType = as_dtype(dtype)
        self.inputs = ()
        self.outputs = ()
        self.updates = ()
        self.records = {}
        self._order = None
        self.stored: tuple[Stored, ...] = ()
        self.made: list[ReferenceType[Tensor]] = []
        self._token: Any = None
        self._precision: Any = None

    def __enter__(self) -> OpenGraph:
        if self._token is not None:
            raise GraphError(
                "Graph requires to be opened once at a time, got a second `with` "
                f"inside of the first; make another Graph{at(here())}"
            )
        self._token = _OPEN.set(self)
        self._precision = PRECISION.set(self.amp or PRECISION.get())
        return self

    def __exit__(self, *_: object) -> None:
        _OPEN.reset(self._token)
        PRECISION.reset(self._precision)
        self._token = None

    def _repr_svg_(self) -> str:
        return str(pictures.graph_svg(self))

    def __repr__(self) -> str:
        inputs = ", ".join(f"{leaf.name}: {leaf.type}" for leaf in self.inputs)
        stored = f"{len(self.parameters)} parameters, {len(self.states)} states"
        return f"Graph({inputs or 'no inputs'}; {stored})"

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Every node that the roots reach so far, inputs before users."""
        return topological(self.roots)

    @property
    def parameters(self) -> dict[str, Parameter]:
        """Parameters made while this graph was open, by name."""
        return {p.name: p for p in self.stored if isinstance(p, Parameter)}

    @property
    def states(self) -> dict[str, State]:
        """States made while this graph was open, by name."""
        return {s.name: s for s in self.stored if isinstance(s, State)}

    @property
    def ends(self) -> tuple[Tensor, ...]:
        """Tensors made while this graph was open and used by no node."""
        alive = [t.node for t in (made() for made in self.made) if t is not None]
        read = {t.node for node in alive for t in node.inputs}
        return tuple(t for node in alive if node not in read for t in node.outputs)

    def add_input(self, leaf: Input) -> None:
        """Record a new input; raise if its name is taken."""
        if any(other.name == leaf.name for other in self.inputs):
            raise GraphError(
                f"input requires a name of its own, got {leaf.name!r} twice; "
                f"rename one{at(leaf.source)}"
            )
        leaf.node.home = self
        self.inputs += (leaf,)

    def add_update(self, leaf: Stored, new: Tensor) -> None:
        """Record that `leaf` becomes `new` at the end of a step."""
        if any(other is leaf for other, _ in self.updates):
            raise GraphError(
                f"update requires one new value per leaf, got two of {leaf.name!r}; "
                f"combine them into one{at(new.source)}"
            )
        self.updates += ((leaf, new),)

    def pending(self, leaf: Stored) -> Tensor | None:
        """Return the recorded new value of `leaf`, if any."""
        return next((new for other, new in self.updates if other is leaf), None)

    def replace_update(self, leaf: Stored, new: Tensor) -> None:
        """Record that `leaf` becomes `new`, in place of an earlier update."""
        self.updates = tuple(u for u in self.updates if u[0] is not leaf)
        self.add_update(leaf, new)

    def add_stored(self, leaf: Stored) -> None:
        """Record a new parameter or state."""
        leaf.node.home = self
        self.stored += (leaf,)

    def unique_name(self, name: str, renamed: Container[Stored] = ()) -> str:
        """Return `name`, numbered if another stored leaf than `renamed` has it."""
        taken = {leaf.name for leaf in self.stored if leaf not in renamed}
        if name not in taken:
            return name
        numbered = (f"{name}_{n}" for n in range(1, len(taken) + 2))
        return next(candidate for candidate in numbered if candidate not in taken)


def current_graph() -> OpenGraph | None:
    """The innermost open Graph, if there is one."""
    return _OPEN.get()


def default_dtype() -> DType:
    """Return the dtype of inputs, zeros, ones... in the open graph, or float32."""
    graph = _OPEN.get()
    return FLOAT32 if graph is None else graph.dtype


@contextmanager
def scope(name: str) -> Iterator[str]:
    """Context in which nodes carry `name`, appended to the outer scope by a dot.

    >>> import staticgrad as sg
    >>> with sg.scope("encoder"):
    ...     y = sg.exp([1.0])
    >>> y.scope
    'encoder'
    """
    outer = _SCOPE.get()
    inner = f"{outer}.{name}" if outer else name
    token = _SCOPE.set(inner)
    try:
        yield inner
    finally:
        _SCOPE.reset(token)


def current_scope() -> str:
    """Return the dotted path of open scopes; in `deriving`, that of the old node."""
    origin = DERIVED.get()
    return _SCOPE.get() if origin is None else origin.scope


@contextmanager
def deriving() -> Iterator[Callable[[Node], None]]:
    """Context of ``derive_from(node)``: later nodes get that node's line and scope.

    Used by what makes nodes from nodes (passes, differentiation), so that errors and
    kernels point to the user's line.
    """
    origin = Origin(here(), current_scope())
    token = DERIVED.set(origin)

    def derive_from(node: Node) -> None:
        origin.source, origin.scope = node.source, node.scope

    try:
        yield derive_from
    finally:
        DERIVED.reset(token)


def infer(
    op: Op,
    types: Sequence[TensorType],
    attrs: Mapping[str, Any],
    graphs: tuple[Graph, ...] = (),
) -> tuple[TensorType, ...]:
    """Infer the types of the results; ShapeError or DTypeError by the op's rules."""
    if op.outputs == VARIABLE:
        attrs = {**attrs, "graphs": graphs}
    shapes, dtypes = op.shape(*types, **attrs), op.dtype(*types, **attrs)
    weak = all(map(_is_weak, types)) if types else isinstance(op.code, Extent)
    if op.outputs == 1:
        return (TensorType(tuple(shapes), dtypes, weak),)
    weak = weak and op.outputs != VARIABLE
    return tuple(
        TensorType(tuple(shape), dtype, weak)
        for shape, dtype in zip(shapes, dtypes, strict=True)
    )


def _require_sizes(types: Sequence[TensorType]) -> None:
    """ShapeError if a size is a negative number."""
    for result in types:
        if any(isinstance(dim, int) and dim < 0 for dim in result.shape):
            raise ShapeError(f"sizes >= 0, got {result}")


def apply_multi(
    op: Op, *inputs: Tensor, graphs: tuple[Graph, ...] = (), **attrs: Any
) -> tuple[Tensor, ...]:
    """Return all outputs of a new node; errors name the op, the rule and the line."""
    source = here()
    precision = PRECISION.get()
    if precision is not None and DERIVED.get() is None:
        inputs = precision.operands(op, inputs)
    types = tuple(t.type for t in inputs)
    try:
        result = infer(op, types, attrs, graphs)
        _require_sizes(result)
    except (ShapeError, DTypeError) as error:
        raise located(error, op.name, types, source) from None
    outputs = Node(
        op, inputs, attrs, result, graphs=graphs, scope=current_scope(), source=source
    ).outputs
    graph = _OPEN.get()
    if graph is not None and DERIVED.get() is None:
        graph.made.append(ref(outputs[0]))
    return outputs


def apply(op: Op, *inputs: Tensor, **attrs: Any) -> Tensor:
    """Return the one output of a new node; errors name op, rule and the user's line."""
    return apply_multi(op, *inputs, **attrs)[0]


def located(
    error: ShapeError | DTypeError,
    name: str,
    types: Sequence[TensorType],
    source: Source | None,
) -> ShapeError | DTypeError:
    """Return `error`, whose arguments are (rule[, advice]), formatted for users."""
    rule, *advice = error.args
    got = " and ".join(map(str, types))
    text = f"{name} requires {rule}"
    if got and "got " not in rule:
        text += f", got {got}"
    if advice:
        text += f"; {advice[0]}"
    return type(error)(text + at(source))


def with_nested(nodes: Sequence[Node]) -> Iterator[Node]:
    """Yield `nodes`, and those of the graphs in them."""
    left: list[Sequence[Node]] = [nodes]
    while left:
        for node in left.pop():
            left += [graph.nodes for graph in node.graphs]
            yield node


def topological(
    roots: Iterable[Tensor], given: Container[Tensor] = frozenset()
) -> tuple[Node, ...]:
    """Return the nodes that `roots` reach in topological order, without recursion.

    What only tensors of `given` reach is left out.
    """
    order: list[Node] = []
    done: set[Node] = set()
    stack: list[Node | None] = [root.node for root in roots if root not in given]
    stack.reverse()
    while stack:
        node = stack.pop()
        if node is None:  # all inputs of the node below are done
            order.append(cast(Node, stack.pop()))
        elif node not in done:
            done.add(node)
            stack += (node, None)
            for t in reversed(node.inputs):
                if t.node not in done and t not in given:
                    stack.append(t.node)
    return tuple(order)


def depending(tensors: Iterable[Tensor], on: Iterable[Tensor]) -> set[Tensor]:
    """`on`, and what of `tensors` and their makers is made of it."""
    found = set(on)
    for node in topological(tensors):
        if not found.isdisjoint(node.inputs):
            found.update(node.outputs)
    return found


def homes(roots: Iterable[Tensor]) -> tuple[OpenGraph, ...]:
    """The Graphs in which the leaves that `roots` reach were made, each once."""
    found = (node.home for node in topological(roots))
    return tuple(dict.fromkeys(graph for graph in found if graph is not None))


Rule = Callable[[Node, tuple[Tensor, ...]], "Sequence[Tensor] | None"]


Finish = Callable[[Tensor, Tensor], Tensor]


def rewrite(
    graph: Graph, rule: Rule, finish: Finish | None = None, nested: bool = True
) -> Graph:
    """Return `graph` with every node replaced by the result of `rule`.

    ``rule(node, inputs)`` sees the node and its already rewritten inputs; it returns
    the tensors that take the place of the node's outputs, or None to keep the node (on
    the new inputs). Nested graphs are rewritten first. If nothing changes the same
    Graph object is returned. `finish` and `nested` are as in ``rewritten``.
    """
    new = rewritten(graph.nodes, rule, finish=finish, nested=nested)
    if not new:
        return graph
    outputs = tuple(new.get(t, t) for t in graph.outputs)
    updates = tuple((leaf, new.get(t, t)) for leaf, t in graph.updates)
    return Graph.closed(graph.inputs, outputs, updates)


def rewritten(
    nodes: Sequence[Node],
    rule: Rule,
    replaced: Mapping[Tensor, Tensor] | None = None,
    finish: Finish | None = None,
    nested: bool = True,
) -> dict[Tensor, Tensor]:
    """Apply `rule` to `nodes` and return the map from replaced outputs to new tensors.

    The nodes are in topological order. Those whose outputs are all keys of `replaced`
    are skipped. ``finish(old, now)`` returns the final replacement of `old`. Without
    `nested`, nested graphs stay as they are.
    """
    given = replaced or {}
    new: dict[Tensor, Tensor] = dict(given)
    known = new.keys()
    with deriving() as derive_from:
        for node in nodes:
            if given and all(t in given for t in node.outputs):
                continue
            kept = node
            if node.graphs or not known.isdisjoint(node.inputs):
                kept = _renewed(node, new, rule if nested else None)
            derive_from(kept)
            outputs = rule(kept, kept.inputs)
            if outputs is None:
                if kept is node and finish is None:
                    continue
                outputs = kept.outputs
            for old, now in zip(node.outputs, outputs, strict=True):
                last = now if finish is None else finish(old, now)
                if last is not old:
                    new.setdefault(old, last)
    return new


def _renewed(node: Node, new: Mapping[Tensor, Tensor], rule: Rule | None) -> Node:
    """Rebuild `node` on rewritten inputs and graphs; return it if nothing changed."""
    graphs = node.graphs
    same = True
    if graphs and rule is not None:
        graphs = tuple(rewrite(inner, rule) for inner in graphs)
        same = all(a is b for a, b in zip(graphs, node.graphs, strict=True))
    if same and new.keys().isdisjoint(node.inputs):
        return node
    return rebuilt(node, tuple(new.get(t, t) for t in node.inputs), graphs)


def rebuilt(
    node: Node,
    inputs: tuple[Tensor, ...],
    graphs: tuple[Graph, ...] | None = None,
) -> Node:
    """Apply the same operation to other inputs: types inferred, scope and line kept."""
    types, given = node.types, tuple([t.type for t in inputs])
    if given != tuple([t.type for t in node.inputs]):
        types = infer(node.op, given, node.attrs, graphs or node.graphs)
    return Node(
        node.op,
        inputs,
        node.attrs,
        types,
        graphs=node.graphs if graphs is None else graphs,
        scope=node.scope,
        source=node.source,
    )
