"""Module: parameters and sub-modules under names, and a computation over them.

Registration is plain attribute assignment: the tree is found by walking ``__dict__``
(and the lists, tuples and dicts in it), so a Module needs no base ``__init__``.

Names: a parameter is made before anyone knows where its module will stand, so it gets
its path when the outermost module is first called. The path is the attribute names,
joined by dots; it is also the scope of the nodes that the module makes. A module that
stands in two places keeps the first name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

from staticgrad.ir.graph import current_graph, current_scope, scope
from staticgrad.ir.node import Parameter, Stored
from staticgrad.ir.source import at, here
from staticgrad.nn.module_hooks import Handle, Hooks


class Module:
    """A part of a model. Subclasses assign attributes and define ``forward``.

    >>> import staticgrad as sg
    >>> class Scaled(sg.nn.Module):
    ...     def __init__(self):
    ...         self.linear = sg.nn.Linear(3, 2)
    ...     def forward(self, x):
    ...         return self.linear(x) * 0.5
    >>> with sg.Graph(seed=0):
    ...     model = Scaled()
    ...     y = model(sg.input("x", ("batch", 3)))
    >>> list(model.parameters())
    ['linear.weight', 'linear.bias']
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The computation; a subclass defines it."""
        raise TypeError(
            f"{type(self).__name__} requires a forward method, got none; define "
            f"forward(self, x){at(here())}"
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """``forward``, in the scope that the module's path names."""
        name = self.__dict__.get("_name")
        if name is None:
            _give_names(self)
        policy = self.__dict__.get("_policy") or nullcontext()
        with scope(name) if name else nullcontext(), policy:
            hooks: Hooks | None = self.__dict__.get("_hooks")
            if hooks is None:
                return self.forward(*args, **kwargs)
            return hooks.run(self, args, kwargs)

    def on_forward_pre(self, fn: Callable[..., Any]) -> Handle:
        """Let ``fn(module, args)`` see what the module is called with.

        What it returns, a tuple of arguments or one, takes their place; None leaves
        them. Hooks run in the order in which they were added, each time the module is
        called, so while a graph is built; ``handle.remove()`` ends that.
        """
        return self._hooked().add("before", fn)

    def on_forward(self, fn: Callable[..., Any]) -> Handle:
        """Let ``fn(module, args, result)`` see, or replace, what the module gives.

        >>> import staticgrad as sg
        >>> features = []
        >>> with sg.Graph():
        ...     layer = sg.nn.Linear(3, 2)
        ...     handle = layer.on_forward(lambda module, args, y: features.append(y))
        ...     y = layer(sg.input("x", (4, 3)))
        >>> features[0] is y
        True
        >>> handle.remove()
        """
        return self._hooked().add("after", fn)

    def on_backward(self, fn: Callable[..., Any]) -> Handle:
        """Let ``fn(module, of_inputs, of_results)`` see the gradients of a call.

        Both are tuples of Tensors, of the float tensors among the positional arguments
        and among the results; None where there is no gradient. It is called once for
        each gradient that is derived through the call (for each mode, if they differ).
        A tuple that it returns takes the place of the gradients of the inputs.
        """
        return self._hooked().add("gradients", fn)

    def _hooked(self) -> Hooks:
        hooks: Hooks = self.__dict__.setdefault("_hooks", Hooks())
        return hooks

    def parameters(self) -> dict[str, Parameter]:
        """Every parameter by its path within this module, each once."""
        found = _leaves(self)
        return {path: leaf for path, leaf in found if isinstance(leaf, Parameter)}

    def modules(self) -> dict[str, Module]:
        """This module (under ``""``) and every one in it, by path, each once."""
        return {path: m for path, m, _ in _walk(self)}

    def __repr__(self) -> str:
        parts = [
            f"{path}={value!r}"
            for path, value in _children(self)
            if isinstance(value, Module)
        ]
        return f"{type(self).__name__}({', '.join(parts)})"


def _walk(root: Module) -> Iterator[tuple[str, Module, str]]:
    """(path, module, name within its parent), parents first, each module once."""
    seen: set[int] = set()
    stack: list[tuple[str, Module, str]] = [("", root, "")]
    while stack:
        path, module, name = stack.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        yield path, module, name
        below = [
            (f"{path}.{child}" if path else child, value, child)
            for child, value in _children(module)
            if isinstance(value, Module)
        ]
        stack.extend(reversed(below))


def _leaves(root: Module) -> Iterator[tuple[str, Stored]]:
    seen: set[int] = set()
    for path, module, _ in _walk(root):
        for name, value in _children(module):
            if not isinstance(value, Stored) or id(value) in seen:
                continue
            seen.add(id(value))
            yield (f"{path}.{name}" if path else name), value


def _children(module: Module) -> Iterator[tuple[str, Any]]:
    """The attributes, with lists, tuples and dicts opened, in order of assignment."""
    stack = list(reversed(module.__dict__.items()))
    while stack:
        name, value = stack.pop()
        inner: list[tuple[str, Any]] = []
        if isinstance(value, list | tuple):
            inner = [(f"{name}.{i}", v) for i, v in enumerate(value)]
        elif isinstance(value, dict):
            inner = [(f"{name}.{key}", v) for key, v in value.items()]
        else:
            yield name, value
        stack.extend(reversed(inner))


def _give_names(root: Module) -> None:
    """Give the modules and leaves under `root` their paths, unless they have one."""
    graph, prefix = current_graph(), current_scope()
    leaves = tuple(_leaves(root))
    for _, module, name in _walk(root):
        module.__dict__.setdefault("_name", name)
    for path, leaf in leaves:
        if leaf.storage.name:
            continue
        full = f"{prefix}.{path}" if prefix else path
        leaf.storage.name = full if graph is None else graph.unique_name(full)
