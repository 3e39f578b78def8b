"""Executables: the results of ``compile``.

A call arranges its arguments, finds the program for their sizes and runs it with fresh
outputs. `bind` fixes arguments and outputs once, so that later calls do neither.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from staticgrad.compiler.kernel_ir.plan import Plan
from staticgrad.compiler.runtime.arguments import Signature
from staticgrad.compiler.runtime.bound import Bound, Runner, Unflatten
from staticgrad.compiler.runtime.explanation import Change, explain_changes
from staticgrad.compiler.runtime.frame import Frame
from staticgrad.compiler.runtime.profile import Profile
from staticgrad.compiler.runtime.taps import Tap, Tapping, check_inputs, checked, warn
from staticgrad.compiler.runtime.target import Target
from staticgrad.errors import GraphError, NonFiniteError
from staticgrad.ir.lazy_module import Later
from staticgrad.ir.node import Input, Tensor
from staticgrad.ir.size import symbols
from staticgrad.ir.source import at, here

pictures = Later("staticgrad.pictures")  # they draw what is above them: when asked for


if TYPE_CHECKING:
    from staticgrad.compiler.runtime.targets.cpu_target import Route

T = TypeVar("T")

Array = npt.NDArray[Any]
Trace = Callable[[Sequence[Array]], NonFiniteError | None]
Changes = Callable[[Sequence[Tap], Mapping[str, int] | None], Sequence[Change]]


@dataclass(frozen=True)
class Memory:
    """Memory plan of an executable, for the sizes of its last call.

    `arena_bytes` hold every temporary; `lower_bound_bytes` bounds all plans from below;
    `unplanned_bytes` is the size of one array per tensor. `buffers` are (name, bytes,
    offset, first kernel, last kernel) of buffers in the arena.
    """

    plan: Plan

    @property
    def arena_bytes(self) -> int:
        """Size of the one allocation that holds every temporary."""
        return self.plan.arena_bytes

    @property
    def lower_bound_bytes(self) -> int:
        """Peak of live bytes, unpadded."""
        return self.plan.lower_bound_bytes

    @property
    def unplanned_bytes(self) -> int:
        """Sum over all tensors of the unfused graph."""
        return self.plan.unplanned_bytes

    @property
    def buffers(self) -> tuple[tuple[str, int, int, int, int], ...]:
        """Buffers as (name, bytes, offset, first kernel, last kernel)."""
        plan = self.plan
        rows = zip(
            plan.schedule.buffers, plan.bytes, plan.offsets, plan.first, plan.last,
            strict=True,
        )  # fmt: skip
        return tuple(
            (buffer.name, size, offset, first, last)
            for buffer, size, offset, first, last in rows
            if offset >= 0
        )

    def __repr__(self) -> str:
        return (
            f"Memory(arena_bytes={self.arena_bytes}, "
            f"lower_bound_bytes={self.lower_bound_bytes}, "
            f"unplanned_bytes={self.unplanned_bytes})"
        )

    def render(self, path: str | os.PathLike[str]) -> Path:
        """Write the picture of the plan as SVG; returns the path."""
        return Path(pictures.render_memory(self.plan, path))

    def _repr_svg_(self) -> str:
        return str(pictures.memory_svg(self.plan))


class Executable:
    """Compiled graph; call it with arrays, by position or by keyword.

    It may be called from several threads at once. `target` computes the leaves that
    `unflatten` makes the result of: the first `results` of its outputs. `trace` finds
    out where a result stopped being finite, given the inputs of a call that failed;
    `changes` goes through the stages of the compiler once more, with taps, for sizes.
    """

    def __init__(
        self,
        target: Target,
        inputs: Sequence[Input],
        unflatten: Unflatten,
        results: int,
        sizes: Mapping[str, int] | None = None,
        notes: Sequence[str] = (),
        trace: Trace = lambda _: None,
        tapping: Tapping | None = None,
        changes: Changes = lambda *_: (),
    ) -> None:
        self.target = self._untapped = target
        self._tapping = tapping
        self._taps: list[Tap] = []
        self._bounds: WeakSet[Bound] = WeakSet()
        self.inputs = tuple(inputs)
        self.notes = tuple(notes)
        self._signature = Signature(inputs)
        self._unflatten = _quick(unflatten, results)
        self._results = results
        self._trace = trace
        self._changes = changes
        self._is_leaf = results == 1 and _is_leaf(unflatten)
        self._route: Route | None = None
        self._sizes: Mapping[str, int] | None = _static(inputs, sizes)
        if self._sizes is not None:
            target.plan(self._sizes)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"pickle requires values, got an {self!r}; build and compile in each "
            f"process{at(here())}"
        )

    def __repr__(self) -> str:
        return f"Executable({', '.join(f'{x.name}: {x.type}' for x in self.inputs)})"

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs as fresh arrays, in the structure given to compile."""
        route = self._route
        values: Sequence[Any] = args
        outputs: Sequence[Array]
        if kwargs and not args and tuple(kwargs) == self._signature.names:
            values = tuple(kwargs.values())
        elif kwargs:
            route = None  # `arrange` puts them in order, or says what does not fit
        try:
            found = None if route is None else route.try_to_run(values)
            if found is None:
                values = self._arranged(args, kwargs)
                outputs = self._called(values)
            else:
                outputs = found
        except NonFiniteError as error:
            raise (self._trace(_on_host(values)) or error) from None
        if self._is_leaf:
            return outputs[0]
        return self._unflatten(outputs[: self._results])

    def _given(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the values in the order of the inputs, on a GPU as DeviceArrays."""
        values = self._signature.arrange(args, kwargs)
        return self.target.given(self._signature, values)

    def _arranged(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        return self._signature.arrays(self._given(args, kwargs))

    def on_device(self, /, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs as fresh arrays on the GPU.

        Other libraries take them without a copy, by ``__cuda_array_interface__`` or
        DLPack; ``numpy()`` copies one to the host. Inputs, here and in any call, may be
        arrays on the GPU, of the inputs' dtypes and contiguous: nothing goes through
        the host then. GraphError for another target than "cuda".
        """
        outputs = self._run(self.target.call_on_device, args, kwargs)
        return self._unflatten(outputs[: self._results])

    def _run(
        self, run: Callable[[list[Array], dict[str, int]], T],
        args: Sequence[Any], kwargs: Mapping[str, Any],
    ) -> T:  # fmt: skip
        """Return what ``run(arrays, sizes)`` gives for the arguments of a call."""
        arrays = self._arranged(args, kwargs)
        sizes = self._sizes = self._signature.sizes(arrays)
        try:
            return run(arrays, sizes)
        except NonFiniteError as error:
            raise (self._trace(_on_host(arrays)) or error) from None

    def _called(self, arrays: list[Array]) -> Sequence[Array]:
        sizes = self._sizes = self._signature.sizes(arrays)
        target = self.target
        route = self._route = target.route(arrays, sizes)
        if route is None:
            return target.call(arrays, sizes)
        if target is not self.target:  # tapped meanwhile, by another thread
            self._route = None
        return route.run(arrays)

    def bind(self, /, *args: Any, **kwargs: Any) -> Bound:
        """Bind the executable to its arguments: nothing is copied.

        Each call of the result reads the arrays as they are then, and returns the same
        output arrays. DTypeError or GraphError for an array that would need a copy.
        """
        signature = self._signature
        arrays = signature.exact(self._given(args, kwargs))
        sizes = self._sizes = signature.sizes(arrays)
        return self._bound(arrays, sizes)

    def repeat(self, times: int, /, *args: Any, **kwargs: Any) -> Any:
        """Call `times` times with the same arguments, in one native call.

        Returns fresh outputs of the last run; only updates make the runs differ.
        """
        signature = self._signature
        arrays = self._arranged(args, kwargs)
        sizes = self._sizes = signature.sizes(arrays)
        return self._bound(arrays, sizes).repeat(times)

    def _bound(self, arrays: Sequence[Array], sizes: Mapping[str, int]) -> Bound:
        def bound() -> Runner:
            return self.target.bind(arrays, sizes)

        def trace() -> NonFiniteError | None:
            return self._trace(_on_host(arrays))

        unflatten = None if self._is_leaf else self._unflatten
        result = Bound(bound, unflatten, self._results, trace)
        self._bounds.add(result)
        return result

    def tap(
        self,
        tensor: Tensor,
        callback: Callable[[Array], Any] | None = None,
        *,
        record: int | None = None,
    ) -> Tap:
        """Tap `tensor`, any value or gradient of the graph, at each run.

        ``callback(array)`` is called with a copy, between kernels and inside compiled
        loops too; what it raises stops the run before anything is written, and is
        raised by the call. With `record` the last so many values are kept by native
        code instead: ``handle.values``. ``handle.remove()`` ends it; the executable
        then has the program again that it had before. Of a tensor in the body of a
        loop or branch every value is seen, step by step, as often as the body runs:
        keep it in a list while the body's function is called, and tap the last one.

        A HookWarning is issued for a tensor on no path to the outputs, and for the same
        callback twice on one tensor, which is one tap. Raises GraphError for tensors
        that cannot be tapped.

        >>> import staticgrad as sg
        >>> x = sg.parameter([1.0, 2.0])
        >>> h = x * x
        >>> f = sg.compile(sg.sum(h))
        >>> handle = f.tap(h, lambda value: print("saw", value))
        >>> float(f())
        saw [1. 4.]
        5.0
        >>> handle.remove()
        """
        tapping = self._tapping
        if tapping is None:
            raise GraphError(f"tap requires what sg.compile gave{at(here())}")
        checked(tensor, callback, record)
        inside = tapping.is_inside(tensor)
        if not inside:
            check_inputs(tensor, self.inputs)
        for tap in self._taps:
            if tap.looks_at(tensor, callback, record):
                warn("tap requires one callback for each tap, got the same again, which"
                     " stays one tap; remove the first")  # fmt: skip
                return tap
        if not inside and not tapping.is_shared(tensor):
            warn(f"tap requires a tensor on the way to the outputs, got {tensor.type} "
                 f"of {tensor.op.name}{at(tensor.source)}, which shares nothing with "
                 "them; it is computed for the tap alone")  # fmt: skip
        ring = None if record is None else tapping.ring(tensor, record)
        tap = Tap(tensor, callback, ring, self._drop, here())
        self._renew([*self._taps, tap])
        return tap

    def _drop(self, tap: Tap) -> None:
        self._renew([other for other in self._taps if other is not tap])

    def _renew(self, taps: list[Tap]) -> None:
        """Switch to another program, or the one without taps."""
        assert self._tapping is not None
        self.target = self._tapping.make(tuple(taps)) if taps else self._untapped
        self._taps = taps
        self._route = None
        for bound in tuple(self._bounds):
            bound.renew()

    def traced(
        self, error: BaseException, arrays: Mapping[str, Array]
    ) -> BaseException:
        """Return `error`; a NonFiniteError gets its origin, found from the inputs.

        For programs that run frames of this executable.
        """
        names = self._signature.names
        if not isinstance(error, NonFiniteError) or any(n not in arrays for n in names):
            return error
        return self._trace([arrays[name] for name in names]) or error

    def frame(self, sizes: Mapping[str, int] | None = None) -> Frame:
        """A frame with arrays of its own for inputs and outputs, for other programs."""
        frame = self.target.program_frame(dict(sizes or {}))
        return frame.own(self.inputs, self._results)

    def explain(self, passes: bool = False) -> str:
        """Describe what was compiled, what came from the cache and what is copied.

        With `passes` also what each stage of the compiler changed, and why it is there.
        The graph goes through all stages once more for that.

        >>> import staticgrad as sg
        >>> x = sg.input("x", (3,))
        >>> text = sg.compile(sg.log(1 + x)).explain(passes=True)
        >>> [line.split(",")[0] for line in text.splitlines() if "log 1 -> 0" in line]
        ['  stabilise: 4 -> 2 nodes (add 1 -> 0']
        """
        notes = (*self.notes, *self._signature.notes.values())
        text = self.target.explain(self.inputs, notes)
        if not passes:
            return text
        sizes = self._sizes
        found = explain_changes(self._changes(self._taps, sizes), sizes)
        return f"{text}\n{found}"

    def profile(self, times: int, /, *args: Any, **kwargs: Any) -> Profile:
        """Measure the time of each kernel over `times` runs with the same arguments.

        ``print`` it for a table by kernel with the user's lines; ``.lines`` has the
        seconds of each line, ``.roles`` those of forward, backward and update. Kernels
        are timed one by one; parameters and states are as before afterwards.
        GraphError for another target than "cpu".

        >>> import numpy as np, staticgrad as sg
        >>> x = sg.input("x", ("n",))
        >>> f = sg.compile(sg.sum(sg.exp(x)))
        >>> profile = f.profile(10, x=np.ones(1000))
        >>> len(profile.lines), profile.seconds > 0
        (1, True)
        """
        if times < 1:
            raise GraphError(
                f"profile requires at least 1 run, got {times}; 100 is usual"
                f"{at(here())}"
            )
        return self._run(partial(self.target.profile, times=times), args, kwargs)

    def source(self) -> str:
        """The generated code of all kernels, each once."""
        return self.target.source()

    @property
    def memory(self) -> Memory:
        """Memory plan for the sizes of the last call (or those of compile)."""
        if self._sizes is None:
            raise GraphError(
                "memory requires sizes, got none; call the executable once or give "
                f"compile(sizes={{...}}){at(here())}"
            )
        plan = self.target.plan(self._sizes)
        if plan is None:
            raise self.target.without_frames()
        return Memory(plan)


def _on_host(values: Sequence[Any]) -> list[Array]:
    """Return arrays that NumPy can read."""
    return [np.asarray(value) for value in values]


def _quick(unflatten: Unflatten, count: int) -> Unflatten:
    """Return a fast unflatten for a flat list, tuple or dict."""
    marks = [object() for _ in range(count)]
    made = unflatten(marks)
    if type(made) is list and _are(made, marks):
        return list
    if type(made) is tuple and _are(made, marks):
        return tuple
    if type(made) is dict and _are(list(made.values()), marks):
        names = tuple(made)
        return lambda found: dict(zip(names, found, strict=True))
    return unflatten


def _are(found: Sequence[Any], marks: Sequence[object]) -> bool:
    """Whether `found` are just these objects, in this order."""
    return len(found) == len(marks) and all(map(operator.is_, found, marks))


def _is_leaf(unflatten: Unflatten) -> bool:
    """Whether the result is the one output itself, not a structure around it."""
    mark = object()
    try:
        return unflatten([mark]) is mark
    except ValueError:
        return False


def _static(
    inputs: Sequence[Input], sizes: Mapping[str, int] | None
) -> dict[str, int] | None:
    """Return the sizes before the first call, if static or all given."""
    names = symbols(tuple(dim for leaf in inputs for dim in leaf.shape))
    given = dict(sizes or {})
    unknown = given.keys() - names
    if unknown:
        raise GraphError(
            f"compile requires sizes of its inputs, got {', '.join(sorted(unknown))}; "
            f"they are {', '.join(sorted(names)) or 'static'}{at(here())}"
        )
    if names - given.keys():
        return None
    return {name: given[name] for name in _in_order(inputs)}


def _in_order(inputs: Sequence[Input]) -> list[str]:
    found: dict[str, None] = {}
    for leaf in inputs:
        for dim in leaf.shape:
            found.update(dict.fromkeys(sorted(symbols((dim,)))))
    return list(found)
