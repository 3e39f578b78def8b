"""Graphs: what users open with ``with`` and what passes rewrite.

A Graph is a frozen value once it is closed: inputs, outputs, updates. While it is open
(inside ``with``) it collects inputs, updates and scopes. Nodes belong to no graph; a
graph's nodes are those that its outputs and updates reach.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from operator import attrgetter
from typing import Any, Protocol, cast
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


class Precision(Protocol):
    """Decides in which dtypes an op runs; see amp.py."""

    def operands(self, op: Op, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """`inputs`, cast where `op` is to run in another dtype."""


PRECISION: ContextVar[Precision | None] = ContextVar("precision", default=None)
"""What holds for the operations that users build; derivatives and passes have none."""

_is_weak = attrgetter("weak")

_OPEN: ContextVar[Graph | None] = ContextVar("open graph", default=None)
_SCOPE: ContextVar[str] = ContextVar("scope", default="")


class Graph:
    """A computation: inputs, outputs and updates of stored leaves.

    Users open one to build in; passes take one and give one. ``seed`` starts the
    initial values of layers, ``dtype`` is the default of inputs, zeros, ones, eye and
    linspace, ``amp`` a policy of mixed precision for what is built inside.

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
        self.inputs: tuple[Input, ...] = ()
        self.outputs: tuple[Tensor, ...] = ()
        self.updates: tuple[Update, ...] = ()
        self.stored: tuple[Stored, ...] = ()
        self.shared: dict[str, Any] = {}
        self.made: list[ReferenceType[Tensor]] = []
        self._token: Any = None
        self._precision: Any = None
        self._order: tuple[Node, ...] | None = None

    @staticmethod
    def closed(
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        updates: Sequence[Update] = (),
    ) -> Graph:
        """A finished graph, as passes make them."""
        graph = Graph()
        graph.inputs = tuple(inputs)  # type: ignore[arg-type]
        graph.outputs = tuple(outputs)
        graph.updates = tuple(updates)
        return graph

    def __enter__(self) -> Graph:
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
    def roots(self) -> tuple[Tensor, ...]:
        """Outputs and new values: everything that has to be computed."""
        return self.outputs + tuple(new for _, new in self.updates)

    def uses(self) -> Counter[Tensor]:
        """How often each tensor is an input of a node or a root."""
        found = Counter(tensor for node in self.nodes for tensor in node.inputs)
        found.update(self.roots)
        return found

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Every node that the roots reach, inputs before users; nested ones aside."""
        if self._order is None or self._token is not None:
            self._order = topological(self.roots)
        return self._order

    @property
    def parameters(self) -> dict[str, Parameter]:
        """The parameters made while this graph was open, by name."""
        return {p.name: p for p in self.stored if isinstance(p, Parameter)}

    @property
    def states(self) -> dict[str, State]:
        """The states made while this graph was open, by name."""
        return {s.name: s for s in self.stored if isinstance(s, State)}

    @property
    def ends(self) -> tuple[Tensor, ...]:
        """What users made while this graph was open and did not use further in it."""
        alive = [t.node for t in (made() for made in self.made) if t is not None]
        read = {t.node for node in alive for t in node.inputs}
        return tuple(t for node in alive if node not in read for t in node.outputs)

    def add_input(self, leaf: Input) -> None:
        """Note a new input; two of one name are an error."""
        if any(other.name == leaf.name for other in self.inputs):
            raise GraphError(
                f"input requires a name of its own, got {leaf.name!r} twice; "
                f"rename one{at(leaf.source)}"
            )
        leaf.node.home = self
        self.inputs += (leaf,)

    def add_update(self, leaf: Stored, new: Tensor) -> None:
        """Note that `leaf` becomes `new` at the end of a step."""
        if any(other is leaf for other, _ in self.updates):
            raise GraphError(
                f"update requires one new value per leaf, got two of {leaf.name!r}; "
                f"combine them into one{at(new.source)}"
            )
        self.updates += ((leaf, new),)

    def pending(self, leaf: Stored) -> Tensor | None:
        """The new value that `leaf` has so far, if it has one."""
        return next((new for other, new in self.updates if other is leaf), None)

    def replace_update(self, leaf: Stored, new: Tensor) -> None:
        """Let `leaf` become `new` instead of what was noted before, if anything was."""
        self.updates = tuple(u for u in self.updates if u[0] is not leaf)
        self.add_update(leaf, new)

    def add_stored(self, leaf: Stored) -> None:
        """Note a new parameter or state."""
        leaf.node.home = self
        self.stored += (leaf,)

    def unique_name(self, name: str, renamed: Container[Stored] = ()) -> str:
        """`name`, numbered if a stored leaf that is not `renamed` next has it."""
        taken = {leaf.name for leaf in self.stored if leaf not in renamed}
        if name not in taken:
            return name
        numbered = (f"{name}_{n}" for n in range(1, len(taken) + 2))
        return next(candidate for candidate in numbered if candidate not in taken)


def current_graph() -> Graph | None:
    """The innermost open Graph, if there is one."""
    return _OPEN.get()


def default_dtype() -> DType:
    """The dtype of inputs, zeros, ones... in the open graph; float32 outside one."""
    graph = _OPEN.get()
    return FLOAT32 if graph is None else graph.dtype


@contextmanager
def scope(name: str) -> Iterator[str]:
    """Nodes made inside carry `name`, appended to the scope outside by a dot."""
    outer = _SCOPE.get()
    inner = f"{outer}.{name}" if outer else name
    token = _SCOPE.set(inner)
    try:
        yield inner
    finally:
        _SCOPE.reset(token)


def current_scope() -> str:
    """The dotted path of the open scopes; that of the node being derived from."""
    origin = DERIVED.get()
    return _SCOPE.get() if origin is None else origin.scope


@contextmanager
def deriving() -> Iterator[Callable[[Node], None]]:
    """Gives ``derive_from(node)``: nodes made after it carry that node's line and
    scope.

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
    """The types of the results; ShapeError or DTypeError as the op's rules say."""
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
    """All outputs of a new node; errors name the op, the rule and the user's line."""
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
    """The one output of a new node; errors name op, rule and the user's line."""
    return apply_multi(op, *inputs, **attrs)[0]


def located(
    error: ShapeError | DTypeError,
    name: str,
    types: Sequence[TensorType],
    source: Source | None,
) -> ShapeError | DTypeError:
    """`error`, whose arguments are (rule[, advice]), in the form that users see."""
    rule, *advice = error.args
    got = " and ".join(map(str, types))
    text = f"{name} requires {rule}"
    if got and "got " not in rule:
        text += f", got {got}"
    if advice:
        text += f"; {advice[0]}"
    return type(error)(text + at(source))


def with_nested(nodes: Sequence[Node]) -> Iterator[Node]:
    """`nodes`, and those of the graphs in them."""
    left: list[Sequence[Node]] = [nodes]
    while left:
        for node in left.pop():
            left += [graph.nodes for graph in node.graphs]
            yield node


def topological(
    roots: Iterable[Tensor], given: Container[Tensor] = frozenset()
) -> tuple[Node, ...]:
    """The nodes that `roots` reach, each after its inputs, without recursion.

    What only tensors of `given` reach is left out.
    """
    order: list[Node] = []
    done: set[Node] = set()
    stack: list[Node | None] = [root.node for root in roots if root not in given]
    stack.reverse()
    while stack:
        node = stack.pop()
        if node is None:  # all inputs of the node below are there
            order.append(cast(Node, stack.pop()))
        elif node not in done:
            done.add(node)
            stack += (node, None)
            for t in reversed(node.inputs):
                if t.node not in done and t not in given:
                    stack.append(t.node)
    return tuple(order)


def homes(roots: Iterable[Tensor]) -> tuple[Graph, ...]:
    """The Graphs in which the leaves that `roots` reach were made, each once."""
    found = (node.home for node in topological(roots))
    return tuple(dict.fromkeys(graph for graph in found if graph is not None))


Rule = Callable[[Node, tuple[Tensor, ...]], "Sequence[Tensor] | None"]


Finish = Callable[[Tensor, Tensor], Tensor]


def rewrite(
    graph: Graph, rule: Rule, finish: Finish | None = None, nested: bool = True
) -> Graph:
    """`graph` with every node replaced by what `rule` gives for it.

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
    """What takes the place of outputs of `nodes`; those that stay are left out.

    The nodes are in topological order. Those whose outputs are all keys of `replaced`
    are not looked at. ``finish(old, now)`` has the last word on what takes the place of
    `old`. Without `nested`, nested graphs stay as they are.
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
    """`node` on rewritten inputs and graphs; itself where they are its own."""
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
    """The same operation on other inputs: types inferred anew, scope and line kept."""
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
