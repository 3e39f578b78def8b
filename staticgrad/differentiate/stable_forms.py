"""The forward part, brought into stable forms before it is differentiated.

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


@dataclass(frozen=True, slots=True)
class Prepared:
    """A rewritten forward part: what took the place of the results and of wrt.

    `nodes` compute `ends`. A tensor of wrt that they do not use is not in `wanted`.
    """

    nodes: Sequence[Node]
    ends: tuple[Tensor, ...]
    wanted: dict[Tensor, Tensor]
    back: dict[Tensor, Tensor]

    def restored(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """`tensors`, made of the forward part, on the user's tensors again."""
        return substituted(tensors, self.back) if self.back else list(tensors)


def prepared(
    nodes: Sequence[Node],
    ys: Sequence[Tensor],
    wrt: Sequence[Tensor],
    side: int | None = None,
    simplify: bool = True,
) -> Prepared:
    """The forward part `nodes` of `ys`, rewritten; by_mode as its input `side`."""
    if not rewritten(nodes, _forward_rule(side, simplify), nested=False):
        made = {t for node in nodes for t in node.outputs}
        return Prepared(nodes, tuple(ys), {x: x for x in wrt if x in made}, {})
    new = rewritten(
        nodes, _forward_rule(side, simplify), finish=_kept(set(wrt)), nested=False
    )
    ends = tuple(new.get(y, y) for y in ys)
    wanted = {x: new[x] for x in wrt if x in new}  # all that ys use: KEEP is new
    back = {now: old for old, now in new.items()}
    return Prepared(topological(ends), ends, wanted, back)


def substituted(
    outputs: Sequence[Tensor], replaced: Mapping[Tensor, Tensor]
) -> list[Tensor]:
    """`outputs`, computed with other tensors in the place of the keys of `replaced`."""
    nodes = topological(outputs, replaced)
    new = rewritten(nodes, lambda node, inputs: None, replaced, nested=False)
    return [new.get(t, t) for t in outputs]


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
