"""Stable forms of the forward part, applied before differentiation.

Bodies of control flow are left as they are: their derivatives prepare them.

The rewriting is made on a copy whose tensors are put back into what differentiation
gives: the derivative refers to the tensors of the user, so that it can be
differentiated again with respect to any of them.

Weakness: tensors inside a stable form (the exp of a log-sum-exp) are not in the
derivative; to differentiate that with respect to them, pass ``simplify=False``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from staticgrad.compiler.passes.match import chase, table_rule
from staticgrad.compiler.passes.simplify import RULES as SIMPLIFY
from staticgrad.compiler.passes.stabilise import RULES as STABILISE
from staticgrad.ir.graph import Rule, apply, rewritten, topological
from staticgrad.ir.node import Node, Tensor
from staticgrad.ir.op import Elementwise, Mode, Op

_STABILISE, _SIMPLIFY = table_rule(STABILISE), table_rule(SIMPLIFY)

# opaque stand-in for a tensor of wrt during the rewriting: no rule matches
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


@dataclass(frozen=True, slots=True)
class Prepared:
    """Rewritten forward part, with the replacements of results and wrt.

    `nodes` compute `ends`. A tensor of wrt that they do not use is not in `wanted`.
    """

    nodes: Sequence[Node]
    ends: tuple[Tensor, ...]
    wanted: dict[Tensor, Tensor]
    back: dict[Tensor, Tensor]

    def restored(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return `tensors`, made of the rewritten part, on the user's tensors again."""
        return substituted(tensors, self.back) if self.back else list(tensors)


def prepared(
    nodes: Sequence[Node],
    ys: Sequence[Tensor],
    wrt: Sequence[Tensor],
    side: int | None = None,
    simplify: bool = True,
) -> Prepared:
    """Rewrite the forward part `nodes` of `ys`, with by_mode as its input `side`."""
    if not rewritten(nodes, _forward_rule(side, simplify), nested=False):
        made = {t for node in nodes for t in node.outputs}
        return Prepared(nodes, tuple(ys), {x: x for x in wrt if x in made}, {})
    new = rewritten(
        nodes, _forward_rule(side, simplify), finish=_kept(set(wrt)), nested=False
    )
    ends = tuple(new.get(y, y) for y in ys)
    wanted = {x: new[x] for x in wrt if x in new}  # those that ys use
    back = {now: old for old, now in new.items()}
    return Prepared(topological(ends), ends, wanted, back)


def substituted(
    outputs: Sequence[Tensor], replaced: Mapping[Tensor, Tensor]
) -> list[Tensor]:
    """Return `outputs` computed with other tensors for the keys of `replaced`."""
    nodes = topological(outputs, replaced)
    new = rewritten(nodes, lambda node, inputs: None, replaced, nested=False)
    return [new.get(t, t) for t in outputs]


def _forward_rule(side: int | None, simplify: bool) -> Rule:
    """Return the rule for by_mode and stable forms; each result is a new tensor.

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
    """Return the finish of ``rewritten`` that hides what replaces `wanted` (KEEP)."""
    return lambda old, now: apply(KEEP, now) if old in wanted else now
