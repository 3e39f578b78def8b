"""Module: named parameters and sub-modules, and a computation over them.

Registration is plain attribute assignment: the tree is found by walking ``__dict__``
(and the lists, tuples and dicts in it), so a Module needs no base ``__init__``.

Names: a parameter is made before anyone knows where its module will stand, so it gets
its path when the outermost module is first called. The path is the attribute names,
joined by dots; it is also the scope of the nodes that the module makes. A module that
stands in two places keeps the first name.

A deep copy has parameters and states of its own that start at equal values, so a target
network is ``copy.deepcopy(net)``; it is given its path where it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from copy import deepcopy
from typing import TYPE_CHECKING, Any, NoReturn

from staticgrad.ir.graph import current_graph, current_scope, scope
from staticgrad.ir.node import Parameter, Stored
from staticgrad.ir.source import at, here
from staticgrad.nn.module_hooks import Handle, ModuleHooks

# Names in other libraries' modules, and their equivalents here.
ELSEWHERE = {
    "named_parameters": "parameters() is a dict by name",
    "state_dict": "keep {name: p.value for name, p in parameters().items()}, or all "
    "with trainer.save",
    "load_state_dict": "assign to p.value of parameters(), or use trainer.load",
    "train": "one graph serves both; sg.compile(mode='train') chooses",
    "eval": "one graph serves both; sg.compile(mode='eval'), the default, chooses",
    "children": "modules() is a dict by path",
    "named_modules": "modules() is a dict by path",
    "apply": "write a loop over modules() or parameters()",
    "zero_grad": "leave it out: sg.grad gives the gradients of one loss",
    "requires_grad_": "say what is trained: Trainer(parameters=), or sg.grad's wrt",
    "register_buffer": "assign sg.state(value), or a NumPy array, to an attribute",
    "register_parameter": "assign sg.parameter(value) to an attribute",
    "register_forward_hook": "use on_forward",
    "register_forward_pre_hook": "use on_forward_pre",
    "register_full_backward_hook": "use on_backward",
    "append": "make a new Sequential(*layers, layer)",
    "to": "sg.compile(target=) chooses where it runs; sg.amp has 16-bit policies",
    "cuda": "sg.compile(target='cuda') chooses where it runs",
    "cpu": "sg.compile(target='cpu') chooses where it runs",
    "half": "sg.amp.set_policy(module, 'float16') runs it with 16-bit products",
}


class Module:
    """Part of a model; subclasses assign attributes and define ``forward``.

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
        """Compute the result; a subclass defines it."""
        raise TypeError(
            f"{type(self).__name__} requires a forward method, got none; define "
            f"forward(self, x){at(here())}"
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call ``forward`` in the scope of the module's path."""
        name = self.__dict__.get("_name")
        if name is None:
            _give_names(self)
        policy = self.__dict__.get("_policy") or nullcontext()
        with scope(name) if name else nullcontext(), policy:
            hooks: ModuleHooks | None = self.__dict__.get("_hooks")
            if hooks is None:
                return self.forward(*args, **kwargs)
            return hooks.run(self, args, kwargs)

    def on_forward_pre(self, fn: Callable[..., Any]) -> Handle:
        """Call ``fn(module, args)`` before the module; it may replace the arguments.

        What it returns, a tuple of arguments or one, takes their place; None leaves
        them. Hooks run in the order in which they were added, each time the module is
        called, so while a graph is built; ``handle.remove()`` ends that.
        """
        return self._hooked().add("before", fn)

    def on_forward(self, fn: Callable[..., Any]) -> Handle:
        """Call ``fn(module, args, result)`` after it; it may replace the result.

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
        """Call ``fn(module, of_inputs, of_results)`` with the gradients of a call.

        Both are tuples of Tensors, of the float tensors among the positional arguments
        and among the results; None where there is no gradient. It is called once for
        each gradient that is derived through the call (for each mode, if they differ).
        A tuple that it returns takes the place of the gradients of the inputs.
        """
        return self._hooked().add("gradients", fn)

    def _hooked(self) -> ModuleHooks:
        hooks: ModuleHooks = self.__dict__.setdefault("_hooks", ModuleHooks())
        return hooks

    def parameters(self) -> dict[str, Parameter]:
        """Return every parameter by its path within this module, each once."""
        found = _leaves(self)
        return {path: leaf for path, leaf in found if isinstance(leaf, Parameter)}

    def modules(self) -> dict[str, Module]:
        """Return this module (under ``""``) and every one in it, by path, each once."""
        return {path: m for path, m, _ in _walk(self)}

    def __deepcopy__(self, memo: dict[int, Any]) -> Module:
        """Copy the module with new parameters and states of equal values."""
        copy = type(self).__new__(type(self))
        memo[id(self)] = copy
        kept = {k: v for k, v in self.__dict__.items() if k != "_name"}
        copy.__dict__.update(deepcopy(kept, memo))
        return copy

    if not TYPE_CHECKING:  # type checkers shall report missing names

        def __getattr__(self, name: str) -> NoReturn:
            text = f"{type(self).__name__!r} object has no attribute {name!r}"
            advice = ELSEWHERE.get(name)
            raise AttributeError(f"{text}; {advice}{at(here())}" if advice else text)

    def __repr__(self) -> str:
        parts = [
            f"{path}={value!r}"
            for path, value in _children(self)
            if isinstance(value, Module)
        ]
        return f"{type(self).__name__}({', '.join(parts)})"


def _walk(root: Module) -> Iterator[tuple[str, Module, str]]:
    """Yield (path, module, name within its parent), parents first, each module once."""
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
    """Yield the attributes in order, with lists, tuples and dicts opened."""
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
    unnamed = {leaf: path for path, leaf in leaves if not leaf.storage.name}
    while unnamed:
        leaf, path = next(iter(unnamed.items()))
        full = f"{prefix}.{path}" if prefix else path
        leaf.storage.name = full if graph is None else graph.unique_name(full, unnamed)
        del unnamed[leaf]


__all__ = ["Module"]
