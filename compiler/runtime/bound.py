"""Bound: an executable with fixed arguments and outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NoReturn, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from staticgrad.errors import NonFiniteError
from staticgrad.ir.source import at, here

Array = npt.NDArray[Any]
Unflatten: TypeAlias = Callable[[Sequence[Any]], Any]
Guard: TypeAlias = Callable[[Callable[[], None]], Callable[[], Any]]


class Runner(Protocol):
    """Protocol of the computation behind a Bound."""

    outputs: list[Array]

    def run(self) -> None:
        """Compute the outputs again."""

    def native(
        self, guarded: Guard, result: Any, make: Callable[[], Any] | None
    ) -> Callable[[], Any] | None:
        """Return one native call that runs and returns `result`, or what `make` makes.

        ``guarded(step)`` calls a step that may raise.
        """
        return None

    def repeat(self, times: int) -> None:
        """Run so many times in one call."""
        for _ in range(times):
            self.run()


class CopyingRunner(Runner):
    """Fixed outputs that take what ``call()`` gives, of these (shape, dtype)."""

    def __init__(
        self,
        call: Callable[[], Sequence[Array]],
        shapes: Iterable[tuple[tuple[int, ...], npt.DTypeLike]],
    ) -> None:
        self._call = call
        self.outputs = [np.empty(shape, dtype) for shape, dtype in shapes]

    def run(self) -> None:
        """Write the outputs anew."""
        for output, value in zip(self.outputs, self._call(), strict=True):
            np.copyto(output, value)


class Bound:
    """Executable whose arguments and outputs stay where they are.

    A call runs it; the outputs are those of the last call, written anew, and in the
    structure that `unflatten` makes: None if there is one, by itself.
    """

    __slots__ = (
        "__call__", "__weakref__", "_bind", "_results", "_runner", "_trace",
        "_unflatten",
    )  # fmt: skip

    __call__: Any  # a slot: each has its own, native one

    def __init__(
        self,
        bind: Callable[[], Runner],
        unflatten: Unflatten | None,
        results: int,
        trace: Callable[[], NonFiniteError | None],
    ) -> None:
        self._bind = bind
        self._results = results
        self._unflatten = unflatten
        self._trace = trace
        self.renew()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "pickle requires values, got a bound executable; build, compile and bind "
            f"in each process{at(here())}"
        )

    def renew(self) -> None:
        """Follow the executable to its current program."""
        runner = self._runner = self._bind()
        outputs = runner.outputs[: self._results]
        trace, unflatten = self._trace, self._unflatten
        result = outputs[0] if unflatten is None else None
        make = None if unflatten is None else partial(unflatten, outputs)

        def guarded(step: Callable[[], None]) -> Callable[[], Any]:
            def call() -> Any:
                try:
                    step()
                except NonFiniteError as error:
                    raise (trace() or error) from None
                return result if make is None else make()

            return call

        native = runner.native(guarded, result, make)
        self.__call__ = native or guarded(runner.run)

    def repeat(self, times: int) -> Any:
        """Run `times` times in one native call; return the last run's outputs.

        Only updates make the runs differ.
        """
        if times < 1:
            raise ValueError(
                f"repeat requires at least 1, got {times}; leave the call out"
                f"{at(here())}"
            )
        if times > 1:
            self._repeat(times - 1)
        return self()

    def _repeat(self, times: int) -> None:
        try:
            self._runner.repeat(times)
        except NonFiniteError as error:
            raise (self._trace() or error) from None
