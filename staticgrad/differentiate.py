"""Derivatives: reverse mode from tensors to tensors.

``grad(y, wrt)`` walks the nodes between wrt and y once, in reverse topological order,
and asks each op for the cotangents of its inputs. The rules are made of ops, so the
result can be differentiated again. Broadcast inputs get the sum of their cotangent over
the broadcast axes.

Before that the forward part is simplified and brought into stable forms, on a copy
whose tensors are put back afterwards: the gradient refers to the tensors of the user,
so that it can be differentiated with respect to any of them. Each mode of a graph with
by_mode is differentiated by itself, so that no zeros of the other side are computed.

Source: Griewank and Walther, Evaluating Derivatives (2008), chapter 3.
Weakness: tensors inside a stable form (the exp of a log-sum-exp) are not in the
gradient; to differentiate that with respect to them, pass ``simplify=False``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from staticgrad.compiler.passes.match import chase, table_rule
from staticgrad.compiler.passes.simplify import RULES as SIMPLIFY
from staticgrad.compiler.passes.stabilise import RULES as STABILISE
from staticgrad.errors import CompilerBug, DTypeError, GraphError, ShapeError
from staticgrad.ir.graph import Rule, apply, deriving, rewritten, topological
from staticgrad.ir.node import Input, Node, Stored, Tensor
from staticgrad.ir.op import Elementwise, Mode, Op
from staticgrad.ir.size import Shape
from staticgrad.ir.source import at, here
from staticgrad.ir.types import is_float
from staticgrad.ops.leaves import frozen
from staticgrad.ops.named import named
from staticgrad.ops.promote import as_tensor
from staticgrad.ops.shape import broadcasted, reshaped
from staticgrad.trees import flatten, unflatten

Unused: TypeAlias = Literal["error", "zero"]
Gradients: TypeAlias = dict[Tensor, Tensor]

_STABILISE, _SIMPLIFY = table_rule(STABILISE), table_rule(SIMPLIFY)

# what stands for a tensor of wrt while the forward part is rewritten: no rule sees
# through it
KEEP = Op(
    "keep",
    shape=lambda x: x.shape,
    dtype=lambda x: x.dtype,
    vjp=lambda g, y, x: (g,),
    code=Elementwise("{0}"),
    numpy=lambda x: x,
    samples=tuple,
    bad=tuple,
)


def grad(
    y: Tensor,
    wrt: Any,
    cotangent: Any = None,
    unused: Unused = "error",
    simplify: bool = True,
) -> Any:
    """The gradient of `y` with respect to every tensor of the tree `wrt`.

    `y` is a float scalar, or has any shape if a `cotangent` of its type is given: the
    result is then that of ``sum(y * cotangent)``. `wrt` may hold any float tensors:
    inputs, parameters, intermediate values. The result has the structure of `wrt`, each
    gradient the type of its tensor, and may be differentiated again. A tensor that y
    does not depend on is a GraphError, or zeros with ``unused="zero"``.

    Raises ShapeError for a y that is no scalar, DTypeError for integers and bools.

    >>> import staticgrad as sg
    >>> x = sg.parameter(2.0, name="x")
    >>> dx = sg.grad((3 * x) ** 2, x)
    >>> float(sg.compile(dx, target="reference")())
    36.0
    """
    leaves, treedef = flatten(wrt)
    _check_arguments(y, leaves, unused)
    seed = _seed(y, cotangent)
    found = _gradients(y, leaves, seed, simplify)
    results = [
        _or_unused(y, x, found, f"wrt{path}", unused)
        for x, path in zip(leaves, treedef.paths, strict=True)
    ]
    return unflatten(treedef, results)


def value_and_grad(
    y: Tensor,
    wrt: Any,
    cotangent: Any = None,
    unused: Unused = "error",
    simplify: bool = True,
) -> tuple[Tensor, Any]:
    """The pair (`y`, ``grad(y, wrt)``); the arguments are those of grad.

    >>> import staticgrad as sg
    >>> x = sg.parameter(3.0, name="x")
    >>> value, dx = sg.value_and_grad(x * x, x)
    """
    return y, grad(y, wrt, cotangent, unused, simplify)


def substitute(outputs: Any, replaced: Mapping[Tensor, Any]) -> Any:
    """The tree `outputs`, computed with other tensors in the place of some.

    `replaced` maps tensors to what takes their place: a tensor or array of the same
    shape and dtype. What does not depend on them is shared, not copied.

    Raises ShapeError or DTypeError where a type differs.

    >>> import staticgrad as sg
    >>> x = sg.input("x", (3,))
    >>> y = sg.substitute(sg.tanh(x), {x: x * 2})
    """
    leaves, treedef = flatten(outputs)
    new = {old: _replacement(old, as_tensor(now)) for old, now in replaced.items()}
    return unflatten(treedef, _substituted(leaves, new))


def _replacement(old: Tensor, now: Tensor) -> Tensor:
    where = at(here())
    if now.type.weak:
        now = named("cast", now, dtype=old.dtype) if now.dtype != old.dtype else now
    if now.shape != old.shape:
        text = f"substitute requires the shape of {old.type}, got {now.type}"
        raise ShapeError(f"{text}; reshape or broadcast it{where}")
    if now.dtype != old.dtype:
        text = f"substitute requires the dtype of {old.type}, got {now.type}"
        raise DTypeError(f"{text}; cast it with .astype{where}")
    return now


def _substituted(
    outputs: Sequence[Tensor], replaced: Mapping[Tensor, Tensor]
) -> list[Tensor]:
    nodes = topological(outputs, replaced)
    new = rewritten(nodes, lambda node, inputs: None, replaced)
    return [new.get(t, t) for t in outputs]


# ---- arguments -----------------------------------------------------------------------


def _check_arguments(y: Any, wrt: Sequence[Any], unused: str) -> None:
    where = at(here())
    if unused not in ("error", "zero"):
        raise GraphError(
            f"grad requires unused to be 'error' or 'zero', got {unused!r}{where}"
        )
    if callable(y) and not isinstance(y, Tensor):
        name = getattr(y, "__name__", "f")
        name = "f" if name == "<lambda>" else name
        raise GraphError(
            f"grad requires the Tensor to differentiate, got a function; write "
            f"lambda x: sg.grad({name}(x), x) for its derivative{where}"
        )
    if not isinstance(y, Tensor):
        raise GraphError(f"grad requires a Tensor y, got {type(y).__name__}{where}")
    if not is_float(y.dtype):
        raise DTypeError(
            f"grad requires a float y, got {y.type}; cast it with .astype{where}"
        )
    for x in wrt:
        _check_wrt(x, where)


def _check_wrt(x: Any, where: str) -> None:
    if not isinstance(x, Tensor):
        raise GraphError(f"grad requires Tensors in wrt, got {type(x).__name__}{where}")
    if not is_float(x.dtype):
        raise DTypeError(
            f"grad requires float tensors in wrt, got {describe(x)}; differentiate "
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
    g = as_tensor(cotangent)
    if g.type.weak:
        g = named("cast", g, dtype=y.dtype) if g.dtype != y.dtype else g
        return broadcasted(g, y.shape)
    if g.shape != y.shape:
        raise ShapeError(
            f"grad requires a cotangent of the shape of {y.type}, got {g.type}; "
            f"reshape or broadcast it{at(here())}"
        )
    if g.dtype != y.dtype:
        raise DTypeError(
            f"grad requires a cotangent of the dtype of {y.type}, got {g.type}; cast "
            f"it with .astype{at(here())}"
        )
    return g


def describe(x: Tensor) -> str:
    """A tensor in an error: name or op, type, line."""
    name = f"{x.op.name} result"
    if isinstance(x, Input | Stored):
        name = f"{x.op.name} {x.name!r}"
    return f"{name} {x.type}{at(x.source)}"


# ---- one gradient per mode -----------------------------------------------------------


def _gradients(
    y: Tensor, wrt: Sequence[Tensor], seed: Tensor, simplify: bool
) -> Gradients:
    nodes = topological([y])
    if not any(isinstance(node.op.code, Mode) for node in nodes):
        return _one_mode(nodes, y, wrt, seed, None, simplify)
    train = _one_mode(nodes, y, wrt, seed, 0, simplify)
    evaluated = _one_mode(nodes, y, wrt, seed, 1, simplify)
    both = [x for x in dict.fromkeys(wrt) if x in train or x in evaluated]
    with deriving() as derive_from:
        derive_from(y.node)
        return {x: _by_mode(x, train.get(x), evaluated.get(x)) for x in both}


def _by_mode(x: Tensor, train: Tensor | None, evaluated: Tensor | None) -> Tensor:
    if train is evaluated and train is not None:
        return train
    train = zeros(x) if train is None else train
    return named("by_mode", train, zeros(x) if evaluated is None else evaluated)


def _one_mode(
    nodes: Sequence[Node],
    y: Tensor,
    wrt: Sequence[Tensor],
    seed: Tensor,
    side: int | None,
    simplify: bool,
) -> Gradients:
    """The gradients where by_mode is its input number `side`."""
    plain = rewritten(nodes, _forward_rule(side, simplify))
    if not plain:
        return _reverse(nodes, y, set(wrt), seed)
    new = rewritten(nodes, _forward_rule(side, simplify), finish=_kept(set(wrt)))
    wanted = {x: new[x] for x in wrt if x in new}  # all that y uses: KEEP is new
    end = new.get(y, y)
    found = _reverse(topological([end]), end, set(wanted.values()), seed)
    back = {now: old for old, now in new.items()}
    used = [x for x in wanted if wanted[x] in found]
    results = _substituted([found[wanted[x]] for x in used], back)
    return dict(zip(used, results, strict=True))


def _forward_rule(side: int | None, simplify: bool) -> Rule:
    """by_mode resolved, stable forms; each result a tensor that was not there before.

    A rule that gives an older tensor (``x * 1 = x``) is left to the compiler: two
    tensors of the user would become one, and their gradients too.
    """
    made_before: set[Tensor] = set()

    def rule(node: Node, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        made_before.update(inputs)
        if isinstance(node.op.code, Mode) and side is not None:
            return (apply(KEEP, inputs[side]),)
        found = _stable(node) if simplify and len(node.outputs) == 1 else None
        if found is None or found in made_before:
            return node.outputs
        return (found,)

    return rule


def _stable(node: Node) -> Tensor | None:
    for rule in (_STABILISE, _SIMPLIFY):
        found = chase(rule, node)
        if found is not None:
            return found
    return None


def _kept(wanted: set[Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """For ``rewritten``: what replaces a tensor of `wanted` is hidden behind KEEP."""
    return lambda old, now: apply(KEEP, now) if old in wanted else now


# ---- reverse mode --------------------------------------------------------------------


def _reverse(
    nodes: Sequence[Node], y: Tensor, wanted: set[Tensor], seed: Tensor
) -> Gradients:
    """The gradients of `y` with respect to those of `wanted` that it depends on."""
    active = _active(nodes, wanted)
    pending: dict[Tensor, list[Tensor]] = {y: [seed]}
    found: Gradients = {}
    with deriving() as derive_from:
        for node in reversed(nodes):
            if not any(t in pending and t in active for t in node.outputs):
                continue
            derive_from(node)
            totals = [_total(pending.pop(t, [])) for t in node.outputs]
            for tensor, total in zip(node.outputs, totals, strict=True):
                if total is not None and tensor in wanted:
                    found[tensor] = total
            for x, g in _cotangents(node, totals, active):
                pending.setdefault(x, []).append(g)
    return found


def _active(nodes: Sequence[Node], wanted: set[Tensor]) -> set[Tensor]:
    """The tensors whose derivative with respect to one of `wanted` may not be zero."""
    active: set[Tensor] = set()
    for node in nodes:
        passes = node.op.vjp is not None and any(t in active for t in node.inputs)
        for tensor in node.outputs:
            if tensor in wanted or (passes and is_float(tensor.dtype)):
                active.add(tensor)
    return active


def _total(parts: Sequence[Tensor]) -> Tensor | None:
    if not parts:
        return None
    total = parts[0]
    for part in parts[1:]:
        total = named("add", total, part)
    return total


def _cotangents(
    node: Node, totals: Sequence[Tensor | None], active: set[Tensor]
) -> Iterator[tuple[Tensor, Tensor]]:
    """The cotangents of the node's active inputs, each of its input's type."""
    if node.op.vjp is None or not any(t in active for t in node.inputs):
        return
    single = len(node.outputs) == 1
    g: Any = totals[0] if single else tuple(totals)
    y: Any = node.outputs[0] if single else node.outputs
    results = node.op.vjp(g, y, *node.inputs, **node.attrs)
    if len(results) != len(node.inputs):
        raise CompilerBug(
            f"the vjp of {node.op.name} requires {len(node.inputs)} results, got "
            f"{len(results)}{at(node.source)}"
        )
    for x, result in zip(node.inputs, results, strict=True):
        if result is not None and x in active:
            yield x, _fitted(node, x, result)


def _fitted(node: Node, x: Tensor, g: Tensor) -> Tensor:
    """`g`, summed to the shape of `x` where the op broadcasts; its type checked."""
    shape = node.outputs[0].shape
    if isinstance(node.op.code, Elementwise) and (g.shape, x.shape) != (shape, shape):
        g = unbroadcast(broadcasted(g, shape), x.shape)
    if (g.shape, g.dtype) != (x.shape, x.dtype):
        raise CompilerBug(
            f"the vjp of {node.op.name} requires a cotangent of {x.type}, got {g.type}"
            f"{at(node.source)}"
        )
    return g


def unbroadcast(g: Tensor, shape: Shape) -> Tensor:
    """`g` summed over the axes along which `shape` was broadcast to that of `g`."""
    added = g.ndim - len(shape)
    pairs = zip(g.shape[added:], shape, strict=True)
    grown = [added + axis for axis, (n, m) in enumerate(pairs) if n != m]
    axes = (*range(added), *grown)
    if axes:
        g = named("reduce_sum", g, axes=axes)
    return reshaped(g, shape)


def zeros(x: Tensor) -> Tensor:
    """Zeros of the type of `x`."""
    return broadcasted(frozen(x.dtype.type(0)), x.shape)


# ---- tensors without a gradient ------------------------------------------------------


def _or_unused(
    y: Tensor, x: Tensor, found: Gradients, path: str, unused: Unused
) -> Tensor:
    if x in found:
        return found[x]
    if unused == "zero":
        return zeros(x)
    raise GraphError(
        f"grad requires y to depend on wrt, got {path}, {describe(x)}, "
        f"{_why_unused(y, x)}; leave it out or pass unused='zero'{at(here())}"
    )


def _why_unused(y: Tensor, x: Tensor) -> str:
    nodes = topological([y])
    if not any(t is x for node in nodes for t in node.outputs):
        return "which y does not use"
    active = _active(nodes, {x})
    for node in nodes:
        reads = any(t in active for t in node.inputs)
        if reads and not any(t in active for t in node.outputs):
            return f"whose path to y is cut by {node.op.name}{at(node.source)}"
    return "whose derivative is zero everywhere"
