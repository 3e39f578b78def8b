"""Trainer: a loss, an optimiser, and the loop over data.

One executable per phase trains (mode "train": loss, metrics, updates), one scores (mode
"eval": losses and metrics), with `accumulate` one commits groups of batches. Each is
compiled once; batches of other sizes, tails and validation are planned again, never
compiled again. ``fit`` is one native call (native_loop.py) on targets with a virtual
machine, one call per epoch where callbacks ask for Python.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from staticgrad.compiler.kernel_ir.plan import Plan
from staticgrad.compiler.runtime.executable import Executable, Memory
from staticgrad.compiler.runtime.profile import Profile
from staticgrad.compiler.runtime.taps import Tap
from staticgrad.compiling import compile as compile_graph
from staticgrad.errors import GraphError
from staticgrad.ir.lazy_module import Later
from staticgrad.ir.node import State, Tensor
from staticgrad.ir.source import at, here
from staticgrad.optim import Clip, Optimizer
from staticgrad.train import saving, snapshot
from staticgrad.train.amp import LossScale
from staticgrad.train.callbacks import Callback, advance, listed
from staticgrad.train.commit import CheckFinite, OnNonfinite, rules
from staticgrad.train.data import BatchAxis, Dataset, dataset, whole
from staticgrad.train.micro_batches import Grouping
from staticgrad.train.native_loop import NativeLoop
from staticgrad.train.objective import objective, parts, scales_of
from staticgrad.train.progress import shown
from staticgrad.train.python_loop import PythonLoop
from staticgrad.train.run import (
    History,
    InPhase,
    Record,
    Run,
    RunSettings,
    checked_record,
    evaluation,
    lengths,
    resumed,
)
from staticgrad.train.training_loop import TrainingLoop, fitting, tasks, validation
from staticgrad.train.watching import GradientWatch, StepTaps

if TYPE_CHECKING:
    from staticgrad.train import cuda_loop
else:
    cuda_loop = Later("staticgrad.train.cuda_loop")

Data: TypeAlias = Mapping[str, npt.ArrayLike]


class Trainer:
    """Trainer of the parameters that `loss` depends on.

    `loss` is a float scalar, a mean over the batch; `parameters` (a tree) restricts
    what is trained, by default every trainable parameter of the loss; `metrics` maps
    names to scalars. `seed` starts the random stream of layers such as Dropout anew.
    With `target` "cuda" data and parameters stay on the GPU, and the host only launches
    captured steps; several phases and `accumulate` are launched step by step.

    Instead of one loss there may be phases, a list ``[(loss, optimizer, parameters),
    ...]`` or a dict of them: each step runs them in order on its batch, later ones see
    the updates of earlier ones. The history then has ``loss_1``, ``loss_2``..., or
    ``critic_loss`` for the key "critic".

    `accumulate` joins the gradients of so many batches, weighted by samples, before
    each update; what is left at the end of an epoch is updated, too. Later phases run
    over all of them once earlier ones are updated, as over one large batch. Batch norms
    normalise each of these batches by its own statistics; with `pool_statistics` their
    running mean and variance move once an update, by mean and variance of all samples
    of its batches, not once a batch.

    `check_finite` is "loss", "gradients" (the loss, too) or None. What happens where
    they are not: `on_nonfinite` "raise" (NonFiniteError, the step changes nothing),
    "skip" (nothing but the random stream changes; ``history["skipped"]`` is the
    fraction of such steps; batches whose loss is not finite are left out of an epoch's
    means) or "replace" (NaN in gradients becomes 0, infinities the largest numbers; the
    loss is not checked; ``history["replaced"]``).

    `clip` is ``sg.optim.clip_by_global_norm(1.0)``, ``clip_by_value``, or several of
    them; ``history["clipped"]`` is the fraction of such steps. `loss_scale` is an
    ``sg.amp.LossScale``, "dynamic" for a new one, or a number that stays: gradients are
    taken of the scaled loss, divided by the scale and checked before they are clipped,
    and steps whose gradients overflow are skipped. `memory_budget` bounds the memory of
    a training step's temporaries, in bytes or as "64MB": see ``sg.compile``.

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
        loss: Any,
        optimizer: Optimizer | None = None,
        parameters: Any = None,
        metrics: Mapping[str, Tensor] | None = None,
        *,
        target: Literal["cpu", "cuda", "reference"] = "cpu",
        accumulate: int = 1,
        pool_statistics: bool = False,
        clip: Clip | Iterable[Clip] | None = None,
        loss_scale: LossScale | Literal["dynamic"] | float | None = None,
        check_finite: CheckFinite = "loss",
        on_nonfinite: OnNonfinite | None = None,
        seed: int | None = None,
        memory_budget: int | str | None = None,
    ) -> None:
        given = parts(loss, optimizer, parameters)
        self.optimizers = tuple(part.optimizer for part in given)
        self.target: Literal["cpu", "cuda", "reference"] = target
        self.accumulate = _checked_accumulate(accumulate)
        self.loss_scale, scales = scales_of(loss_scale, len(given))
        chosen = rules(check_finite, on_nonfinite, clip, self.loss_scale is not None)
        simplify = target != "reference"  # which computes graphs as they were built
        self._objective = goal = objective(
            given, metrics or {}, chosen, scales, self.accumulate, pool_statistics,
            simplify,
        )  # fmt: skip
        self._steps: tuple[Executable, ...] = tuple(
            compile_graph(
                phase.reported, inputs=goal.inputs, updates=phase.updates, mode="train",
                target=target, finite=phase.finite, seed=seed,
                memory_budget=memory_budget,
            )
            for phase in goal.phases
        )  # fmt: skip
        self._taps = StepTaps(given[0].loss, given[0].parameters, simplify)
        self._group = self._grouping()
        self._stored = snapshot.named_leaves(goal.stored, self._optimizer_states)
        self._plan: Plan | None = None
        self._epochs = 0
        self._last: Run | None = None
        self.history: History = {}

    def __repr__(self) -> str:
        inputs = ", ".join(
            f"{leaf.name}: {leaf.type}" for leaf in self._objective.inputs
        )
        return f"Trainer({inputs}; {', '.join(map(repr, self.optimizers))})"

    def tap(
        self,
        tensor: Tensor,
        callback: Callable[[Any], Any] | None = None,
        *,
        record: int | None = None,
        gradient: bool = False,
    ) -> Tap:
        """Tap `tensor` in each training step, inside of `fit` too.

        With `gradient` it is the gradient of the loss with respect to `tensor`. The
        rest is as in `Executable.tap`; callbacks take the GIL, `record` does not. A
        tensor that the loss does not depend on is a GraphError that names the cut. With
        several phases it is the first one.
        """
        if gradient:
            tensor = self._taps.gradient_of(tensor)
        return self._steps[0].tap(tensor, callback, record=record)

    def watch_gradients(self, last: int = 1000) -> GradientWatch:
        """Record mean, std, min, max and norm of all gradients in each step.

        They are computed in the kernels and kept for the `last` steps.
        """
        return self._taps.watch(self._steps[0], last)

    def _grouping(self) -> Grouping | None:
        """Return the Grouping of micro-batches; None if every batch is an update."""
        goal = self._objective
        late = [phase.group for phase in goal.phases if phase.group is not None]
        if not late:
            return None
        with self._steps[0].target.context():  # on the device of the steps
            commits = tuple(
                compile_graph(
                    group.per_update_metrics, inputs=(), updates=group.updates,
                    mode="train", target=self.target,
                )
                for group in late
            )  # fmt: skip
        return Grouping(self.accumulate, commits, goal.sums, goal.inputs)

    @property
    def optimizer(self) -> Optimizer:
        """Optimiser; the first phase's, where there are several."""
        return self.optimizers[0]

    @property
    def _optimizer_states(self) -> dict[str, State]:
        if len(self.optimizers) == 1:
            return self.optimizer.states
        return {
            f"{number}.{name}": state
            for number, optimizer in enumerate(self.optimizers, 1)
            for name, state in optimizer.states.items()
        }

    @cached_property
    def _score(self) -> Executable:
        goal = self._objective
        with self._steps[0].target.context():  # on the device of the steps
            return compile_graph(
                goal.scalars, inputs=goal.inputs, mode="eval", target=self.target
            )

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(self._objective.scalars)

    @property
    def learning_rate(self) -> float:
        """Optimiser's step size; settable at any time, nothing is compiled.

        With several phases it is the first one's to read, and that of all to set; each
        of ``trainer.optimizers`` has its own.
        """
        return self.optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        for optimizer in self.optimizers:
            optimizer.learning_rate = rate

    def reset_optimizer(self) -> None:
        """Clear the optimisers' moments and step counts."""
        for optimizer in self.optimizers:
            optimizer.reset()

    @property
    def memory(self) -> Memory:
        """Memory plan of the training step that was run last."""
        return self._steps[0].memory if self._plan is None else Memory(self._plan)

    def explain(self) -> str:
        """Describe what was compiled, and the sizes for which it was planned."""
        several = len(self._steps) > 1
        found = [
            f"training step{f', phase {n}' if several else ''}\n{step.explain()}"
            for n, step in enumerate(self._steps, 1)
        ]
        for commit in self._group.commits if self._group else ():
            found.append(f"update after {self.accumulate}\n{commit.explain()}")
        if "_score" in self.__dict__:
            found.append(f"evaluation\n{self._score.explain()}")
        return "\n\n".join(found)

    def profile(self, times: int, /, **batch: npt.ArrayLike) -> Profile:
        """Measure the time of each kernel of a training step; see `Executable.profile`.

        With several phases it is the first one's. Nothing is trained.
        """
        return self._steps[0].profile(times, **batch)

    def step(self, /, **batch: npt.ArrayLike) -> dict[str, float]:
        """Run one step on one batch; return loss and metrics from before the update.

        With `accumulate` the update comes with every so many steps; what is reported
        once an update, such as "clipped", is in the result of such a step. So is what
        later phases report: they run over all these batches then, of which copies are
        kept.
        """
        self._plan = None
        reported: dict[str, Any] = {}
        if self._group is not None:
            reported = self._group.step(self._steps, batch)
        else:
            for number, step in enumerate(self._steps):
                with InPhase(number):
                    reported |= step(**batch)
        return {name: float(value) for name, value in reported.items()}

    def evaluate(
        self,
        data: Data,
        batch_size: int | None = None,
        batch_axis: BatchAxis = None,
    ) -> dict[str, float]:
        """Evaluate loss and metrics over `data` in eval mode, averaged over samples.

        Of no samples they are what NumPy gives: NaN for a mean.
        """
        ready = self._dataset(data, batch_axis, may_be_empty=True)
        size = ready.batch_size(batch_size)
        if not ready.samples:
            scores = self._score(**ready.batch(np.arange(0)))
            return {name: float(value) for name, value in scores.items()}
        run = Run(evaluation(self._names, ready.samples, size))
        scoring = TrainingLoop(run, validation(run, self._score, ready))
        self._strategy(scoring).run()
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

        `data` and `validation` map input names to arrays; with target "cuda" they may
        lie on the GPU (``__cuda_array_interface__``, DLPack) and are read there.
        Samples are cut into batches of `batch_size` (default: all in one) along the
        axis named ``batch``, or `batch_axis`; the last batch may be smaller. `shuffle`
        orders them anew each epoch by (`seed`, epoch). `callbacks` are called as
        ``f(epoch, row)`` after each epoch; one that returns True ends the training.
        `early_stopping` is how many epochs without a new least ``val_loss`` (``loss``
        without validation) are endured.

        Returns the history: a float64 array per name (loss, metrics, ``val_`` ones), a
        value per epoch, weighted by samples; with record="step" training values come
        one per step. Values are those before the update.

        Ctrl-C raises KeyboardInterrupt after the step being done; parameters and
        optimiser are those of the last finished step, and the same call with
        ``resume=True`` continues as if nothing had happened: at once with the history
        if the run had ended, up to `epochs` in all if those are more now. Otherwise
        epochs are additional. Raises NonFiniteError, IndexOutOfRange (with the user's
        line), GraphError, ShapeError and DTypeError for bad data, ValueError for empty
        data.
        """
        ready = self._dataset(data, batch_axis)
        given = validation
        scored = None if given is None else self._dataset(given, batch_axis)
        settings = self._settings(
            ready, scored, epochs, batch_size, shuffle, seed, steps, record
        )
        after = listed(callbacks, early_stopping)
        self._last = run = self._run(settings, resume)
        if run.done:
            self.history = run.history
            return self.history
        strategy = self._strategy(self._training(run, ready, scored))
        self._plan = strategy.plan
        try:
            with shown(run, progress):
                advance(run, strategy.run, after)
        finally:
            self._epochs = run.epoch.value
            self.history = run.history
        return self.history

    def _dataset(
        self, data: Data, batch_axis: BatchAxis, may_be_empty: bool = False
    ) -> Dataset:
        given = self._steps[0].target.given
        return dataset(self._objective.inputs, data, batch_axis, may_be_empty, given)

    def _settings(
        self, data: Dataset, scored: Dataset | None, epochs: int | None,
        batch_size: int | None, shuffle: bool, seed: int, steps: int | None,
        record: Record,
    ) -> RunSettings:  # fmt: skip
        size = data.batch_size(batch_size)
        epochs, steps = lengths(epochs, steps, -(-data.samples // size))
        return RunSettings(
            samples=data.samples, batch_size=size,
            validation_samples=scored.samples if scored else 0, epochs=epochs,
            steps=steps, seed=whole("seed", seed), shuffle=shuffle,
            record=checked_record(record), names=self._names,
            first_epoch=self._epochs,
            per_update_metrics=self._objective.per_update_metrics,
            accumulate=self.accumulate, gates=self._objective.gates,
        )  # fmt: skip

    def _run(self, settings: RunSettings, resume: bool) -> Run:
        old = self._last if resume else None
        run = Run(settings) if old is None else resumed(old, settings)
        if self._group is not None and not run.done:
            self._group.start(self._steps, resuming=old is not None)
        return run

    def _training(
        self, run: Run, data: Dataset, scored: Dataset | None
    ) -> TrainingLoop:
        phases, group = self._objective.phases, self._group
        steps = tasks(run, self._steps, [phase.reported for phase in phases])
        ending = () if scored is None else validation(run, self._score, scored)
        if group is None:
            return fitting(run, steps, data, ending)
        updates = [phase.per_update_metrics for phase in phases]
        commits = tasks(run, group.commits, updates)
        return fitting(run, steps, data, ending, commits, group)

    def _strategy(
        self, loop: TrainingLoop
    ) -> NativeLoop | PythonLoop | cuda_loop.CudaLoop:
        """The way to carry out `loop` that the target has."""
        target = self._steps[0].target
        if target.native_loop:
            return NativeLoop(loop)
        if target.gpu is not None and loop.is_plain:
            return cuda_loop.CudaLoop(loop)
        return PythonLoop(loop)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write parameters, states, optimiser and the last run to one file.

        The file is safetensors, replaced atomically; parameters keep their names.
        """
        waiting = self._group.waiting if self._group else ()
        arrays, facts = snapshot.taken(self._stored, self._epochs, self._last, waiting)
        if self._group is not None:
            facts["pending"] = self._group.pending.value
        saving.write(path, arrays, facts)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Read what ``save`` of an equal trainer wrote; ``fit(resume=True)`` goes on.

        Raises GraphError for another kind of file, or where leaves differ; then nothing
        has been changed.
        """
        arrays, facts = saving.read(path)
        self._epochs, self._last = snapshot.put_back(self._stored, arrays, facts)
        if self._group is not None:
            self._group.pending.value = facts.get("pending", 0)
            self._group.waiting = snapshot.batches(arrays)


def _checked_accumulate(number: int) -> int:
    found = whole("accumulate", number)
    if found < 1:
        raise GraphError(
            f"Trainer requires accumulate of at least 1, got {found}; "
            f"it counts the batches of one update{at(here())}"
        )
    return found
