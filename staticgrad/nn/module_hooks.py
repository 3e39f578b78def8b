"""Hooks of a module: before and after it, and on the gradients of both sides.

For gradients there is a gate in front of the module and one behind it. The one behind
is differentiated first and keeps the gradients of the results until the one in front
has those of the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from staticgrad.errors import GraphError, ShapeError
from staticgrad.hooks.hooks import gate
from staticgrad.ir.node import Tensor
from staticgrad.ir.source import at, here
from staticgrad.ir.types import is_float
from staticgrad.trees import flatten, unflatten

Place = Literal["before", "after", "gradients"]
Gradients = tuple[Tensor | None, ...]


@dataclass(eq=False)
class Handle:
    """Handle that removes a hook; dropping it leaves the hook in place."""

    hooks: list[Handle]
    fn: Callable[..., Any]

    def remove(self) -> None:
        """Remove the hook; graphs that are built already stay as they are."""
        if self in self.hooks:
            self.hooks.remove(self)


@dataclass
class ModuleHooks:
    """Hooks of one module, in the order in which they were added."""

    before: list[Handle] = field(default_factory=list)
    after: list[Handle] = field(default_factory=list)
    gradients: list[Handle] = field(default_factory=list)

    def add(self, place: Place, fn: Callable[..., Any]) -> Handle:
        """Add a hook; GraphError unless it is callable."""
        if not callable(fn):
            raise GraphError(f"a hook requires a function, got {fn!r}{at(here())}")
        hooks: list[Handle] = getattr(self, place)
        hooks.append(Handle(hooks, fn))
        return hooks[-1]

    def run(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the module with all hooks and return its result."""
        for hook in tuple(self.before):
            found = hook.fn(module, args)
            if found is not None:
                args = found if isinstance(found, tuple) else (found,)
        watch = _Watch(module, tuple(h.fn for h in self.gradients))
        if watch.fns:
            args = watch.gated(args, watch.of_inputs, reached=True)
        result = module.forward(*args, **kwargs)
        if watch.fns:
            result = watch.gated(result, watch.of_results, reached=False)
        for hook in tuple(self.after):
            found = hook.fn(module, args, result)
            result = result if found is None else found
        return result


@dataclass
class _Watch:
    """Gates at both ends of one call, and the gradients seen by the second."""

    module: Any
    fns: tuple[Callable[..., Any], ...]
    seen: Gradients = ()

    def gated(
        self, tree: Any, pull: Callable[..., Sequence[Tensor | None]], reached: bool
    ) -> Any:
        """Return `tree` with its float tensors behind a gate."""
        leaves, treedef = flatten(tree)
        places = [n for n, t in enumerate(leaves) if _has_gradient(t)]
        if not places:
            return tree
        found = gate([leaves[n] for n in places], pull, reached)
        new = dict(zip(places, found, strict=True))
        return unflatten(treedef, [new.get(n, t) for n, t in enumerate(leaves)])

    def of_results(self, *gs: Tensor | None) -> Gradients:
        """Record the cotangents of the results."""
        self.seen = gs
        return gs

    def of_inputs(self, *gs: Tensor | None) -> Gradients:
        """Call the hooks once the cotangents of the inputs are known as well."""
        seen, self.seen = self.seen, ()
        for fn in self.fns:
            found = fn(self.module, gs, seen)
            if found is not None:
                new = found if isinstance(found, tuple) else (found,)
                gs = self._checked(gs, new)
        return gs

    def _checked(self, old: Gradients, new: Gradients) -> Gradients:
        types = [None if g is None else (g.shape, g.dtype) for g in old]
        found = [None if g is None else (g.shape, g.dtype) for g in new]
        fits = len(types) == len(found) and all(
            f in (None, t) for t, f in zip(types, found, strict=True)
        )
        if not fits:
            raise ShapeError(
                f"on_backward requires gradients of the types of the inputs, got "
                f"{new} for {old}{at(here())}"
            )
        return new


def _has_gradient(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and is_float(leaf.dtype)
