"""Derivatives of tensors by tensors, in reverse and in forward mode.

``grad(y, wrt)`` and ``vjp`` walk back from y to wrt (reverse.py), ``jvp`` walks from
wrt to y (forward.py). Before that the forward part is brought into stable forms, on a
copy whose tensors are put back afterwards (stable_forms.py). In reverse mode each side
of by_mode is differentiated by itself, so that no zeros of the other side are computed.

Weakness: tensors inside a stable form (the exp of a log-sum-exp) are not in the
gradient; to differentiate that with respect to them, pass ``simplify=False``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np

from staticgrad.control.body_derivatives import Inside
from staticgrad.differentiate.cuts import cuts
from staticgrad.differentiate.dead_hooks import warn_of_dead_hooks
from staticgrad.differentiate.forward import pushed_forward
from staticgrad.differentiate.reverse import pulled_back, zeros
from staticgrad.differentiate.stable_forms import prepared, substituted
from staticgrad.errors import DTypeError, GraphError, ShapeError
from staticgrad.ir.graph import deriving, topological
from staticgrad.ir.node import Input, Node, Stored, Tensor
from staticgrad.ir.op import Mode
from staticgrad.ir.size import Dim, product
from staticgrad.ir.source import at, here
from staticgrad.ir.types import is_float
from staticgrad.ops.leaves import frozen
from staticgrad.ops.movement.filling import eye
from staticgrad.ops.movement.views import broadcasted, reshaped
from staticgrad.ops.named import named
from staticgrad.ops.promotion import as_tensor
from staticgrad.trees import TreeDef, flatten, flatten_as, unflatten
from staticgrad.vectorize.mapping import vmap

Unused: TypeAlias = Literal["error", "zero"]
Direction: TypeAlias = Literal["reverse", "forward"]
Gradients: TypeAlias = dict[Tensor, Tensor]


class _Missing:
    """Sentinel of a required argument, whose absence gets an error of our own."""

    def __repr__(self) -> str:
        return "<to be given>"


MISSING: Any = _Missing()


def grad(
    y: Tensor,
    wrt: Any = MISSING,
    cotangent: Any = None,
    unused: Unused = "error",
    simplify: bool = True,
    mode: Direction = "reverse",
) -> Any:
    """Return the gradient of `y` with respect to every tensor of the tree `wrt`.

    `y` is a float scalar, or has any shape if a `cotangent` of its type is given: the
    result is then that of ``sum(y * cotangent)``. `wrt` may hold any float tensors:
    inputs, parameters, intermediate values. The result has the structure of `wrt`, each
    gradient the type of its tensor, and may be differentiated again. A tensor that y
    does not depend on is a GraphError, or zeros with ``unused="zero"``.

    ``mode="forward"`` computes one tangent per element of `wrt`, which is for few of
    them.

    Raises ShapeError for a y that is no scalar, DTypeError for integers and bools.

    >>> import staticgrad as sg
    >>> x = sg.parameter(2.0, name="x")
    >>> dx = sg.grad((3 * x) ** 2, x)
    >>> float(sg.compile(dx, target="reference")())
    36.0
    """
    leaves, treedef = flatten(wrt)
    check_arguments("grad", [y], leaves, unused)
    warn_of_dead_hooks([y], leaves)
    if mode not in ("reverse", "forward"):
        raise GraphError(
            f"grad requires mode to be 'reverse' or 'forward', got {mode!r}{at(here())}"
        )
    if mode == "forward":
        found = _gradients_forward(_scalar(y, cotangent), leaves, simplify)
    else:
        found = gradients([y], leaves, [_seed(y, cotangent)], simplify)
    return with_unused("grad", [y], leaves, treedef, found, unused)


def value_and_grad(
    y: Tensor,
    wrt: Any = MISSING,
    cotangent: Any = None,
    unused: Unused = "error",
    simplify: bool = True,
    mode: Direction = "reverse",
) -> tuple[Tensor, Any]:
    """Return the pair (`y`, ``grad(y, wrt)``); the arguments are those of grad.

    >>> import staticgrad as sg
    >>> x = sg.parameter(3.0, name="x")
    >>> value, dx = sg.value_and_grad(x * x, x)
    """
    return y, grad(y, wrt, cotangent, unused, simplify, mode)


def vjp(
    y: Any,
    wrt: Any = MISSING,
    cotangent: Any = MISSING,
    unused: Unused = "error",
    simplify: bool = True,
) -> Any:
    """Return the cotangents of the tree `wrt` for those of the tree `y`.

    ``v^T J`` of the Jacobian J of y: the gradient of ``sum(y * cotangent)`` over all
    tensors of `y`. `cotangent` has the structure and the types of `y`; a number stands
    for a tensor filled with it. The result has the structure and the types of `wrt`.

    Raises as grad does.

    >>> import staticgrad as sg
    >>> x = sg.parameter([1.0, 2.0], name="x")
    >>> dx = sg.vjp((x * x, 3 * x), x, ([1.0, 0.0], [1.0, 1.0]))
    >>> sg.compile(dx, target="reference")().tolist()
    [5.0, 3.0]
    """
    ys, structure = flatten(y)
    leaves, treedef = flatten(wrt)
    check_arguments("vjp", ys, leaves, unused)
    given = _given("vjp", "a cotangent", ys, structure, cotangent)
    found = gradients(ys, leaves, given, simplify)
    return with_unused("vjp", ys, leaves, treedef, found, unused)


def jvp(
    y: Any,
    wrt: Any = MISSING,
    tangents: Any = MISSING,
    unused: Unused = "error",
    simplify: bool = True,
) -> Any:
    """Return the tangents of the tree `y` for those of the tree `wrt`.

    ``J v`` of the Jacobian J of y: the derivative of y along `tangents`, which have the
    structure and the types of `wrt`; a number stands for a tensor filled with it. The
    result has the structure and the types of `y`, zeros for a y that depends on nothing
    of `wrt`. A tensor of `wrt` that no y depends on is a GraphError, or has no effect
    with ``unused="zero"``.

    Raises DTypeError for integers and bools.

    >>> import staticgrad as sg
    >>> x = sg.parameter([1.0, 2.0], name="x")
    >>> dy = sg.jvp(x * x, x, [1.0, 10.0])
    >>> sg.compile(dy, target="reference")().tolist()
    [2.0, 40.0]
    """
    ys, structure = flatten(y)
    leaves, treedef = flatten(wrt)
    check_arguments("jvp", ys, leaves, unused)
    given = _given("jvp", "a tangent", leaves, treedef, tangents)
    if unused == "error":
        with_unused("jvp", ys, leaves, treedef, reached(ys, leaves), unused)
    return unflatten(structure, tangents_of(ys, leaves, given, simplify))


def substitute(outputs: Any, replaced: Mapping[Tensor, Any]) -> Any:
    """Compute the tree `outputs` with other tensors in place of some.

    `replaced` maps tensors to what takes their place: a tensor or array of the same
    shape and dtype. What does not depend on them is shared, not copied.

    Raises ShapeError or DTypeError where a type differs.

    >>> import staticgrad as sg
    >>> x = sg.input("x", (3,))
    >>> y = sg.substitute(sg.tanh(x), {x: x * 2})
    """
    leaves, treedef = flatten(outputs)
    new = {
        old: _fitting("substitute", "a tensor", old, _strong(old, now))
        for old, now in replaced.items()
    }
    return unflatten(treedef, substituted(leaves, new))


def basis(x: Tensor) -> Tensor:
    """Return the unit tensors of the type of `x` along a new first axis."""
    count: Dim = product(x.shape)
    return reshaped(eye(count, dtype=x.dtype), (count, *x.shape))


def check_arguments(
    name: str, ys: Sequence[Any], wrt: Sequence[Any], unused: str
) -> None:
    """Raise unless all are float Tensors, in the name of the function `name`."""
    where = at(here())
    if unused not in ("error", "zero"):
        raise GraphError(
            f"{name} requires unused to be 'error' or 'zero', got {unused!r}{where}"
        )
    for y in ys:
        _check_result(name, y, where)
    for x in wrt:
        _check_wrt(name, x, where)


def _check_result(name: str, y: Any, where: str) -> None:
    if callable(y) and not isinstance(y, Tensor):
        own = getattr(y, "__name__", "f")
        own = "f" if own == "<lambda>" else own
        more = ", v" if name in ("hvp", "jvp", "vjp") else ""
        raise GraphError(
            f"{name} requires the Tensor to differentiate, got a function; write "
            f"lambda x{more}: sg.{name}({own}(x), x{more}) for its derivative{where}"
        )
    if not isinstance(y, Tensor):
        raise GraphError(f"{name} requires a Tensor y, got {type(y).__name__}{where}")
    if not is_float(y.dtype):
        raise DTypeError(
            f"{name} requires a float y, got {y.type}; cast it with .astype{where}"
        )


def _check_wrt(name: str, x: Any, where: str) -> None:
    if x is MISSING:
        raise GraphError(
            f"{name} requires what to differentiate with respect to, got the Tensor "
            f"alone; write sg.{name}(y, x){where}"
        )
    if not isinstance(x, Tensor):
        advice = "name Tensors, or dicts and lists of them"
        if hasattr(type(x), "parameters"):
            advice = "write model.parameters()"
        raise GraphError(
            f"{name} requires Tensors in wrt, got {type(x).__name__}; {advice}{where}"
        )
    if not is_float(x.dtype):
        raise DTypeError(
            f"{name} requires float tensors in wrt, got {describe(x)}; differentiate "
            f"with respect to a float tensor{where}"
        )


def _seed(y: Tensor, cotangent: Any) -> Tensor:
    if cotangent is None and y.shape != ():
        raise ShapeError(
            f"grad requires a scalar y, got {y.type}; take its sum or mean, or give a "
            f"cotangent{at(here())}"
        )
    if cotangent is None:
        return frozen(y.dtype.type(1))
    return _typed("grad", "a cotangent", y, cotangent)


def _scalar(y: Tensor, cotangent: Any) -> Tensor:
    """Return ``sum(y * cotangent)``."""
    if cotangent is None:
        _seed(y, None)
        return y
    weighted = named("multiply", y, _typed("grad", "a cotangent", y, cotangent))
    return named("reduce_sum", weighted, axes=tuple(range(y.ndim)))


def _given(
    name: str, what: str, like: Sequence[Tensor], treedef: TreeDef, tree: Any
) -> list[Tensor]:
    """Return the leaves of `tree`, which has the structure and types of `like`."""
    if tree is MISSING:
        raise GraphError(
            f"{name} requires {what} for each tensor, got none; write "
            f"sg.{name}(y, x, v){at(here())}"
        )
    leaves = flatten_as(treedef, tree)
    return [_typed(name, what, t, g) for t, g in zip(like, leaves, strict=True)]


def _typed(name: str, what: str, like: Tensor, value: Any) -> Tensor:
    """Return `value` as a tensor of the type of `like`; a number fills one."""
    g = _strong(like, value)
    if not isinstance(value, Tensor) and g.shape == ():
        g = broadcasted(g, like.shape)
    return _fitting(name, what, like, g)


def _strong(like: Tensor, value: Any) -> Tensor:
    """Return `value` as a tensor; numbers take the dtype of `like`."""
    if isinstance(value, list | tuple):
        leaves, _ = flatten(value)
        if all(isinstance(leaf, bool | int | float) for leaf in leaves):
            return frozen(np.asarray(value, like.dtype))
    g = as_tensor(value)
    if g.type.weak and g.dtype != like.dtype:
        return named("cast", g, dtype=like.dtype)
    return g


def _fitting(name: str, what: str, like: Tensor, g: Tensor) -> Tensor:
    """Return `g`, which must have the type of `like`."""
    if g.shape != like.shape:
        raise ShapeError(
            f"{name} requires {what} of the shape of {like.type}, got {g.type}; "
            f"reshape or broadcast it{at(here())}"
        )
    if g.dtype != like.dtype:
        raise DTypeError(
            f"{name} requires {what} of the dtype of {like.type}, got {g.type}; cast "
            f"it with .astype{at(here())}"
        )
    return g


def describe(x: Tensor) -> str:
    """Return a tensor in an error: name or op, type, line."""
    name = f"{x.op.name} result"
    if isinstance(x, Input | Stored):
        name = f"{x.op.name} {x.name!r}"
    return f"{name} {x.type}{at(x.source)}"


def gradients(
    ys: Sequence[Tensor], wrt: Sequence[Tensor], seeds: Sequence[Tensor], simplify: bool
) -> Gradients:
    """Return the cotangents of those of `wrt` that `ys`, of cotangents `seeds`, use."""
    nodes = topological(ys)
    if not any(isinstance(node.op.code, Mode) for node in nodes):
        return _one_mode(nodes, ys, wrt, seeds, None, simplify)
    train = _one_mode(nodes, ys, wrt, seeds, 0, simplify)
    evaluated = _one_mode(nodes, ys, wrt, seeds, 1, simplify)
    both = [x for x in dict.fromkeys(wrt) if x in train or x in evaluated]
    with deriving() as derive_from:
        derive_from(ys[0].node)
        return {x: _by_mode(x, train.get(x), evaluated.get(x)) for x in both}


def _by_mode(x: Tensor, train: Tensor | None, evaluated: Tensor | None) -> Tensor:
    if train is evaluated and train is not None:
        return train
    train = zeros(x) if train is None else train
    return named("by_mode", train, zeros(x) if evaluated is None else evaluated)


def _one_mode(
    nodes: Sequence[Node],
    ys: Sequence[Tensor],
    wrt: Sequence[Tensor],
    seeds: Sequence[Tensor],
    side: int | None,
    simplify: bool,
) -> Gradients:
    """Return the gradients with by_mode resolved to its input number `side`."""
    ready = prepared(nodes, ys, wrt, side, simplify)
    wanted = set(ready.wanted.values())
    summed = _summed(ready.ends, seeds)
    found = pulled_back(ready.nodes, summed, wanted, _inside(simplify))
    used = [x for x in ready.wanted if ready.wanted[x] in found]
    results = ready.restored([found[ready.wanted[x]] for x in used])
    return dict(zip(used, results, strict=True))


def _inside(simplify: bool) -> Inside:
    """Return the rules that differentiate bodies of control flow."""
    return Inside(
        pull=partial(gradients, simplify=simplify),
        push=partial(tangents_of, simplify=simplify),
    )


def _summed(tensors: Sequence[Tensor], seeds: Sequence[Tensor]) -> Gradients:
    """Return the seed of each tensor, seeds of a repeated tensor summed."""
    result: Gradients = {}
    for tensor, seed in zip(tensors, seeds, strict=True):
        known = result.get(tensor)
        result[tensor] = seed if known is None else named("add", known, seed)
    return result


def tangents_of(
    ys: Sequence[Tensor], wrt: Sequence[Tensor], seeds: Sequence[Tensor], simplify: bool
) -> list[Tensor]:
    """Return the tangents of `ys` for `seeds`, the tangents of `wrt`."""
    nodes = topological(ys)
    ready = prepared(nodes, ys, wrt, None, simplify)
    used = [k for k, x in enumerate(wrt) if x in ready.wanted]
    given = _summed([ready.wanted[wrt[k]] for k in used], [seeds[k] for k in used])
    found = pushed_forward(ready.nodes, given, _inside(simplify))
    some = [k for k, end in enumerate(ready.ends) if end in found]
    results = ready.restored([found[ready.ends[k]] for k in some])
    tangents = dict(zip(some, results, strict=True))
    return [tangents[k] if k in tangents else zeros(y) for k, y in enumerate(ys)]


def _gradients_forward(y: Tensor, wrt: Sequence[Tensor], simplify: bool) -> Gradients:
    """Compute each gradient from the tangents of all unit tensors at once."""
    used = reached([y], wrt)

    def gradient(x: Tensor) -> Tensor:
        slopes = vmap(lambda v: tangents_of([y], [x], [v], simplify)[0])(basis(x))
        return reshaped(slopes, x.shape)

    return {x: gradient(x) for x in used}


def reached(ys: Sequence[Tensor], wrt: Sequence[Tensor]) -> Gradients:
    """Return those of `wrt` that some y depends on, as keys."""
    needed = set(ys)
    for node in reversed(topological(ys)):
        passes = any(t in needed and is_float(t.dtype) for t in node.outputs)
        if passes and node.op.vjp is not None:
            needed.update(node.inputs)
    return {x: x for x in wrt if x in needed}


def with_unused(
    name: str,
    ys: Sequence[Tensor],
    wrt: Sequence[Tensor],
    treedef: TreeDef,
    found: Gradients,
    unused: Unused,
) -> Any:
    """Return gradients in the structure of wrt; unused ones are zero or an error."""
    results = []
    for x, path in zip(wrt, treedef.paths, strict=True):
        if x not in found and unused == "error":
            raise GraphError(
                f"{name} requires y to depend on wrt, got wrt{path}, {describe(x)}, "
                f"{_why_unused(ys, x)}; leave it out or pass unused='zero'{at(here())}"
            )
        results.append(found[x] if x in found else zeros(x))
    return unflatten(treedef, results)


def _why_unused(ys: Sequence[Tensor], x: Tensor) -> str:
    nodes = topological(ys)
    if not any(t is x for node in nodes for t in node.outputs):
        return "which y does not use"
    for cut in cuts(nodes, x):
        return f"whose path to y is cut by {cut.node.op.name}{at(cut.node.source)}"
    return "whose derivative is zero everywhere"
