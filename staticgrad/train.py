"""Trainer: a loss, an optimiser, and the loop over data.

One executable trains (mode "train": loss, metrics, updates), one scores (mode "eval":
loss and metrics). Each is compiled once; batches of other sizes, tails and validation
are planned again, never compiled again. ``fit`` is one native call (loop.py) on targets
with a virtual machine, one call per epoch where callbacks ask for Python.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from staticgrad import checkpoint, loop, saving, stepwise
from staticgrad.bar import shown
from staticgrad.callbacks import Callback, advance, listed
from staticgrad.compiler.assembler import Cell
from staticgrad.compiler.executable import Executable, Memory
from staticgrad.compiler.plan import Plan
from staticgrad.compiler.taps import Tap
from staticgrad.compiler.vm import FINISHED, STOPPED
from staticgrad.data import BatchAxis, Dataset, dataset, whole
from staticgrad.errors import GraphError
from staticgrad.function import compile as compile_graph
from staticgrad.interrupt import run_interruptibly
from staticgrad.ir.node import Tensor
from staticgrad.ir.source import at, here
from staticgrad.objective import CheckFinite, objective
from staticgrad.optim import Optimizer
from staticgrad.run import FOREVER, History, Record, Run, Settings, evaluation
from staticgrad.run import require_equal as require_same_settings
from staticgrad.watching import GradientWatch, StepTaps

Data: TypeAlias = Mapping[str, npt.ArrayLike]


class Trainer:
    """Trains the parameters that `loss` depends on.

    `loss` is a float scalar, a mean over the batch; `parameters` (a tree) restricts
    what is trained, by default every trainable parameter of the loss; `metrics` maps
    names to scalars. With `check_finite` "loss" or "gradients" a step whose loss (or
    whose gradients too) is not finite raises NonFiniteError and changes nothing. `seed`
    starts the random stream of layers such as Dropout anew.

    >>> import numpy as np, staticgrad as sg
    >>> with sg.Graph():
    ...     x, y = sg.input("x", ("batch",)), sg.input("y", ("batch",))
    ...     w = sg.parameter(0.0, name="w")
    ...     loss = sg.mean((w * x - y) ** 2)
    >>> trainer = sg.Trainer(loss, optimizer=sg.optim.SGD(0.1), target="reference")
    >>> data = {"x": np.float32([1, 2]), "y": np.float32([3, 6])}
    >>> history = trainer.fit(data, epochs=20, progress=False)
    >>> round(float(w.value), 3)
    3.0
    """

    def __init__(
        self,
        loss: Tensor,
        optimizer: Optimizer,
        parameters: Any = None,
        metrics: Mapping[str, Tensor] | None = None,
        *,
        target: Literal["cpu", "reference"] = "cpu",
        check_finite: CheckFinite = "loss",
        seed: int | None = None,
    ) -> None:
        self.optimizer = optimizer
        self.target: Literal["cpu", "reference"] = target
        self._objective = goal = objective(
            loss, optimizer, parameters, metrics or {}, check_finite,
            simplify=target != "reference",
        )  # fmt: skip
        self._train: Executable = compile_graph(
            goal.scalars, inputs=goal.inputs, updates=goal.updates, mode="train",
            target=target, finite=goal.finite, seed=seed,
        )  # fmt: skip
        self._taps = StepTaps(loss, parameters, simplify=target != "reference")
        self._stored = checkpoint.named_leaves(goal.stored, optimizer.states)
        self._plan: Plan | None = None
        self._epochs = 0
        self._stopped: Run | None = None
        self.history: History = {}

    def tap(
        self,
        tensor: Tensor,
        callback: Callable[[Any], Any] | None = None,
        *,
        record: int | None = None,
        gradient: bool = False,
    ) -> Tap:
        """Look at `tensor` in each training step, inside of `fit` too.

        With `gradient` it is the gradient of the loss with respect to `tensor`. The
        rest is as in `Executable.tap`; callbacks take the GIL, `record` does not. A
        tensor that the loss does not depend on is a GraphError that names the cut.
        """
        if gradient:
            tensor = self._taps.gradient_of(tensor)
        return self._train.tap(tensor, callback, record=record)

    def watch_gradients(self, last: int = 1000) -> GradientWatch:
        """Mean, std, min, max and norm of each parameter's gradient, step by step.

        They are computed in the kernels and kept for the `last` steps.
        """
        return self._taps.watch(self._train, last)

    @cached_property
    def _score(self) -> Executable:
        goal = self._objective
        return compile_graph(
            goal.scalars, inputs=goal.inputs, mode="eval", target=self.target
        )

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(self._objective.scalars)

    @property
    def learning_rate(self) -> float:
        """The optimiser's step size; settable at any time, nothing is compiled."""
        return self.optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        self.optimizer.learning_rate = rate

    def reset_optimizer(self) -> None:
        """Clear the optimiser's moments and step count."""
        self.optimizer.reset()

    @property
    def memory(self) -> Memory:
        """The memory plan of the training step that was run last."""
        return self._train.memory if self._plan is None else Memory(self._plan)

    def explain(self) -> str:
        """What was compiled, and for which sizes it was planned."""
        parts = [f"training step\n{self._train.explain()}"]
        if "_score" in self.__dict__:
            parts.append(f"evaluation\n{self._score.explain()}")
        return "\n\n".join(parts)

    def step(self, /, **batch: npt.ArrayLike) -> dict[str, float]:
        """One step on one batch; loss and metrics as they were before the update."""
        self._plan = None
        return {name: float(value) for name, value in self._train(**batch).items()}

    def evaluate(
        self,
        data: Data,
        batch_size: int | None = None,
        batch_axis: BatchAxis = None,
    ) -> dict[str, float]:
        """Loss and metrics over `data` in eval mode, means weighted by samples.

        Of no samples they are what NumPy gives: NaN for a mean.
        """
        ready = dataset(self._objective.inputs, data, batch_axis, may_be_empty=True)
        size = ready.batch_size(batch_size)
        if not ready.samples:
            scores = self._score(**ready.batch(np.arange(0)))
            return {name: float(value) for name, value in scores.items()}
        run = Run(evaluation(self._names, ready.samples, size))
        if self.target == "reference":
            _finish(lambda stop: stepwise.score(run, self._score, ready, stop))
        else:
            feed = loop.feed(self._score, ready, size)
            program = loop.evaluation_program(run, feed)
            _require_success(_finish(program.run), run, [feed])
        row = {name: float(column[0]) for name, column in run.columns.items()}
        return {name: row[f"val_{name}"] for name in self._names}

    def fit(
        self,
        data: Data,
        *,
        epochs: int | None = None,
        batch_size: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        validation: Data | None = None,
        progress: bool = True,
        callbacks: Callback | Iterable[Callback] | None = None,
        early_stopping: int | None = None,
        steps: int | None = None,
        record: Record = "epoch",
        resume: bool = False,
        batch_axis: BatchAxis = None,
    ) -> History:
        """Train for `epochs` (default 1) or `steps`, whichever ends first.

        `data` and `validation` map input names to arrays. Samples are cut into batches
        of `batch_size` (default: all in one) along the axis named ``batch``, or
        `batch_axis`; the last batch may be smaller. `shuffle` orders them anew each
        epoch by (`seed`, epoch). `callbacks` are called as ``f(epoch, row)`` after each
        epoch; one that returns True ends the training. `early_stopping` is how many
        epochs without a new least ``val_loss`` (``loss`` without validation) are
        endured.

        Returns the history: a float64 array per name (loss, metrics, ``val_`` ones), a
        value per epoch, weighted by samples; with record="step" training values come
        one per step. Values are those before the update.

        Ctrl-C raises KeyboardInterrupt after the step being done; parameters and
        optimiser are those of the last finished step, and the same call with
        ``resume=True`` goes on as if nothing had happened. Otherwise epochs are
        additional. Raises NonFiniteError, IndexOutOfRange (with the user's line),
        GraphError, ShapeError and DTypeError for bad data, ValueError for empty data.
        """
        ready = dataset(self._objective.inputs, data, batch_axis)
        scored = None
        if validation is not None:
            scored = dataset(self._objective.inputs, validation, batch_axis)
        settings = self._settings(
            ready, scored, epochs, batch_size, shuffle, seed, steps, record
        )
        run = self._run(settings, resume)
        after = listed(callbacks, early_stopping)
        work = self._work(run, ready, scored)
        self._stopped = run
        try:
            with shown(run, progress):
                advance(run, work, after)
        finally:
            self._epochs = run.epoch.value
            self.history = run.history
        self._stopped = None
        return self.history

    def _settings(
        self, data: Dataset, scored: Dataset | None, epochs: int | None,
        batch_size: int | None, shuffle: bool, seed: int, steps: int | None,
        record: Record,
    ) -> Settings:  # fmt: skip
        epochs = None if epochs is None else whole("epochs", epochs)
        steps = None if steps is None else whole("steps", steps)
        for name, number in (("epochs", epochs), ("steps", steps)):
            if number is not None and number < 0:
                raise GraphError(
                    f"fit requires {name} >= 0, got {number}; "
                    f"pass how many to train for{at(here())}"
                )
        if record not in ("epoch", "step"):
            raise GraphError(
                f"fit requires record 'epoch' or 'step', got {record!r}; "
                f"leave it out for a value per epoch{at(here())}"
            )
        size = data.batch_size(batch_size)
        per_epoch = -(-data.samples // size)
        if epochs is None:
            epochs = 1 if steps is None else -(-steps // per_epoch)
        return Settings(
            samples=data.samples, batch_size=size,
            validation_samples=scored.samples if scored else 0, epochs=epochs,
            steps=FOREVER if steps is None else steps, seed=whole("seed", seed),
            shuffle=shuffle, record=record, names=self._names,
            first_epoch=self._epochs,
        )  # fmt: skip

    def _run(self, settings: Settings, resume: bool) -> Run:
        if not resume or self._stopped is None:
            return Run(settings)
        require_same_settings(self._stopped.settings, settings)
        return self._stopped

    def _work(
        self, run: Run, data: Dataset, scored: Dataset | None
    ) -> Callable[[], object]:
        """A function that takes `run` as far as its cell ``last_epoch`` says."""
        score = self._score if scored else None
        if self.target == "reference":
            return lambda: _finish(
                lambda stop: stepwise.train(run, self._train, data, score, scored, stop)
            )
        size = run.settings.batch_size
        feeds = [loop.feed(self._train, data, size)]
        self._plan = feeds[0].batches[0].frame.sized.plan
        if score is not None and scored is not None:
            feeds.append(loop.feed(score, scored, min(size, scored.samples)))
        program = loop.training_program(run, *feeds)
        return lambda: _require_success(_finish(program.run), run, feeds)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write parameters, states, optimiser and a stopped run to one file.

        The file is safetensors, replaced atomically; parameters keep their names.
        """
        saving.write(path, *checkpoint.taken(self._stored, self._epochs, self._stopped))

    def load(self, path: str | os.PathLike[str]) -> None:
        """Read what ``save`` of an equal trainer wrote; ``fit(resume=True)`` goes on.

        Raises GraphError for another kind of file, or where leaves differ; then nothing
        has been changed.
        """
        arrays, facts = saving.read(path)
        self._epochs, self._stopped = checkpoint.put_back(self._stored, arrays, facts)


def _finish(work: Callable[[Cell], int]) -> int:
    """The code that `work`, given a stop cell, returns; Ctrl-C sets the cell."""
    stop = Cell(0)
    code = run_interruptibly(lambda: work(stop), stop)
    if code == STOPPED:
        raise KeyboardInterrupt
    return code


def _require_success(code: int, run: Run, feeds: Sequence[loop.Feed]) -> None:
    """Raise what `code` stands for, with the step at which it happened."""
    if code == FINISHED:
        return
    failures = (feed.failure() for feed in feeds)
    raise run.located(next(error for error in failures if error is not None))
