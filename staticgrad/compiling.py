"""``compile``: checks what it is given and calls the compiler (compile.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, get_args

import numpy as np

from staticgrad.budget_argument import budget_bytes
from staticgrad.compiler.compile import (
    Mode,
    Request,
    TargetName,
    changes,
    compiled,
    device_of,
)
from staticgrad.compiler.runtime.executable import Executable
from staticgrad.compiler.runtime.trace import traced
from staticgrad.control.bodies import BODY_INPUT
from staticgrad.errors import GraphError
from staticgrad.hooks.tapping import tapped, tapping
from staticgrad.ir.graph import Graph, Update, homes, topological
from staticgrad.ir.node import Input, Stored, Tensor
from staticgrad.ir.size import symbols
from staticgrad.ir.source import at, here
from staticgrad.ir.verify_graph import node_symbols
from staticgrad.ops.random import RandomStream, key_words
from staticgrad.ops.rules import dtype_error, shape_error
from staticgrad.trees import TreeDef, flatten, unflatten

_KNOWN = (np.ndarray, np.generic, bool, int, float)


def compile(
    outputs: Any,
    inputs: Sequence[Input] | None = None,
    updates: Sequence[Update] | Graph = (),
    mode: Mode = "eval",
    target: TargetName = "cpu",
    sizes: Mapping[str, int] | None = None,
    seed: int | None = None,
    finite: Sequence[Tensor] = (),
    memory_budget: int | str | None = None,
    verify: bool = True,
    poison: bool = False,
) -> Executable:
    """Return an executable that computes `outputs`, any tree of tensors, from `inputs`.

    Arrays and numbers beside tensors in the tree are given back as they are. Without
    `inputs` it takes those that are needed, in the order in which they were made.
    `updates` are pairs of `update`, or a Graph for all of its own; they are applied at
    once, at the end of a call. `mode` says which side of `by_mode` is meant; in "train"
    each call advances the random stream. `sizes` plans memory for symbols' values ahead
    of the first call. `seed` restarts the random stream. `finite` are scalars that have
    to be finite, or else the call raises NonFiniteError before it has updated anything.
    `memory_budget` bounds the arena in bytes (a number, or text like "64MB" or
    "1.5GiB") for all sizes that are called: what does not fit beside the rest is
    computed again when it is needed, with the same bits; ``explain()`` lists it.
    `verify` checks each stage, `poison` fills unused memory with NaN (on the cpu).
    `target` "cuda" is the first NVIDIA GPU, "reference" NumPy, node by node.

    Raises GraphError for what cannot be compiled, such as a missing input, DeviceError
    where there is no GPU, and MemoryBudgetError, when sizes are known, for a budget
    below the least that is reached, which it names.

    >>> import numpy as np, staticgrad as sg
    >>> with sg.Graph():
    ...     x = sg.input("x", ("n",))
    >>> f = sg.compile({"double": 2 * x, "same": x})
    >>> f(np.arange(3.0))["double"]
    array([0., 2., 4.], dtype=float32)
    """
    _check_choice("mode", mode, get_args(Mode))
    _check_choice("target", target, get_args(TargetName))
    leaves, treedef = flatten(outputs)
    tensors = _tensors(leaves)
    pairs = _all_updates(tensors, updates, mode, finite)
    roots = (*tensors, *finite, *(new for _, new in pairs))
    used = _inputs(roots, inputs)
    if seed is not None:
        _seed(roots, seed)
    extra = [t for t in finite if not _holds(tensors, t)]
    graph = Graph.closed(used, (*tensors, *extra), pairs)
    _check_symbols(graph)
    checked = tuple(_position(graph.outputs, t) for t in finite)
    budget = budget_bytes("compile", memory_budget)
    asked = Request(mode, target, checked, verify, poison, budget, device_of(target))
    return Executable(
        compiled(graph, asked), used, _tree(treedef, leaves), len(tensors), sizes,
        trace=partial(traced, graph, mode, checked),
        tapping=tapping(graph, mode, lambda taps: compiled(tapped(graph, taps), asked)),
        changes=lambda taps, sizes: changes(tapped(graph, taps), asked, sizes),
    )  # fmt: skip


def _holds(tensors: Sequence[Tensor], tensor: Tensor) -> bool:
    return any(t is tensor for t in tensors)


def _position(tensors: Sequence[Tensor], tensor: Tensor) -> int:
    return next(n for n, t in enumerate(tensors) if t is tensor)


def _check_choice(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        choices = " or ".join(repr(k) for k in known)
        raise GraphError(
            f"compile requires {name} {choices}, got {value!r}{at(here())}"
        )


def _tensors(leaves: Sequence[Any]) -> list[Tensor]:
    """Return the tensors among `leaves`, at least one if there are leaves."""
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    allowed = (Tensor, *_KNOWN) if tensors else (Tensor,)
    for leaf in leaves:
        if not isinstance(leaf, allowed):
            advice = "call it on tensors such as sg.input('x', shape)"
            if not callable(leaf):
                advice = "wrap a number in sg.constant"
            raise GraphError(
                f"compile requires tensors as outputs, got {type(leaf).__name__}; "
                f"{advice}{at(here())}"
            )
    return tensors


def _tree(treedef: TreeDef, leaves: Sequence[Any]) -> Callable[[Sequence[Any]], Any]:
    """Return the function that puts values of tensors back into the tree."""
    template = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]

    def rebuilt(values: Sequence[Any]) -> Any:
        rest = iter(values)
        filled = [next(rest, None) if leaf is None else leaf for leaf in template]
        return unflatten(treedef, filled)

    return rebuilt


def _all_updates(
    tensors: Sequence[Tensor],
    updates: Sequence[Update] | Graph,
    mode: Mode,
    finite: Sequence[Tensor],
) -> list[Update]:
    """Return the updates asked for and, in train mode, of random streams in use."""
    pairs = list(updates.updates if isinstance(updates, Graph) else updates)
    _check_updates(pairs)
    if mode == "eval":
        return pairs
    done = {leaf for leaf, _ in pairs}
    roots = (*tensors, *finite, *(new for _, new in pairs))
    reached = {t for node in topological(roots) for t in node.outputs}
    for graph in homes(roots):
        for leaf, new in graph.updates:
            stream = leaf is graph.record(RandomStream).stream
            if stream and leaf in reached and leaf not in done:
                pairs.append((leaf, new))
    return pairs


def _check_updates(pairs: Sequence[Update]) -> None:
    seen: set[Stored] = set()
    for pair in pairs:
        if not (isinstance(pair, tuple) and len(pair) == 2):
            raise GraphError(
                f"compile requires updates as pairs (leaf, tensor), got {pair!r}; "
                f"sg.update and optimisers return them{at(here())}"
            )
        leaf, new = pair
        if not isinstance(leaf, Stored) or not isinstance(new, Tensor):
            raise GraphError(
                f"compile requires updates of parameters or states, got {leaf!r}; "
                f"sg.update and optimisers return them{at(here())}"
            )
        if new.shape != leaf.shape:
            wanted = f"an update of the shape of {leaf.name!r}"
            raise shape_error("compile", (leaf, new), wanted, "reshape the new value")
        if new.dtype != leaf.dtype:
            wanted = f"an update of the dtype of {leaf.name!r}"
            advice = f"cast it with .astype({leaf.dtype.name!r})"
            raise dtype_error("compile", (leaf, new), wanted, advice)
        if leaf in seen:
            raise GraphError(
                f"compile requires one update per leaf, got two of {leaf.name!r}; "
                f"combine them into one{at(new.source)}"
            )
        seen.add(leaf)


def _inputs(
    roots: Sequence[Tensor], inputs: Sequence[Input] | None
) -> tuple[Input, ...]:
    """Return the inputs in order, each once; raise for equal names or missing ones."""
    outputs = (t for node in topological(roots) for t in node.outputs)
    needed = sorted(
        (t for t in outputs if isinstance(t, Input)), key=lambda t: t.node.number
    )
    _refuse_inputs_of_bodies(needed)
    used = tuple(needed) if inputs is None else _listed(inputs)
    missing = [leaf for leaf in needed if leaf not in set(used)]
    if missing:
        raise GraphError(
            f"compile requires all inputs that outputs need, got none for "
            f"{missing[0].name!r}; add it to inputs=[...]{at(missing[0].source)}"
        )
    names: set[str] = set()
    for leaf in used:
        if leaf.name in names:
            raise GraphError(
                f"compile requires inputs with names of their own, got {leaf.name!r} "
                f"twice; rename one{at(leaf.source)}"
            )
        names.add(leaf.name)
    return used


def _refuse_inputs_of_bodies(needed: Sequence[Input]) -> None:
    for leaf in needed:
        if leaf.node.op is BODY_INPUT:
            raise GraphError(
                "compile requires tensors that exist outside, got one that a body of a "
                f"branch or loop made from {leaf.name!r}; return it from the body"
                f"{at(leaf.source)}"
            )


def _check_symbols(graph: Graph) -> None:
    known = symbols(tuple(dim for leaf in graph.inputs for dim in leaf.shape))
    for node in graph.nodes:
        unknown = sorted(node_symbols(node) - known)
        if unknown:
            raise GraphError(
                f"compile requires sizes that inputs tell, got {unknown[0]!r} in "
                f"{node.op.name} {node.types[0]}; give inputs=[...] with one of that "
                f"size{at(node.source)}"
            )


def _listed(inputs: Sequence[Input]) -> tuple[Input, ...]:
    if isinstance(inputs, Tensor):
        inputs = (inputs,)
    for leaf in inputs:
        if not isinstance(leaf, Input):
            raise GraphError(
                f"compile requires inputs made by sg.input, got {leaf!r}; "
                f"use sg.substitute for other tensors{at(here())}"
            )
    return tuple(inputs)


def _seed(roots: Sequence[Tensor], seed: int) -> None:
    """Restart the random streams that `roots` draw from."""
    for graph in homes(roots):
        stream = graph.record(RandomStream).stream
        if stream is not None:
            stream.value = key_words(seed)
