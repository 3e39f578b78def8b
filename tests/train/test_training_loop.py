"""The description of the training loop: native programs do what Python does."""

import numpy as np
import pytest

import staticgrad as sg
from staticgrad.compiler.runtime.assembler import Cell
from staticgrad.train.native_loop import NativeLoop
from staticgrad.train.python_loop import PythonLoop, permutation
from staticgrad.train.run import Run, evaluation
from staticgrad.train.training_loop import (
    Add,
    GroupCommit,
    Less,
    Mean,
    Set,
    ShuffleOrder,
    TrainingLoop,
    While,
)

X = np.random.default_rng(0).normal(size=(23, 3)).astype("f4")


class Drawn:
    """Random statements over some cells; the same for the same seed."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.cells = [Cell(n) for n in range(5)]
        self.totals = [Cell(2.5, np.float64), Cell(0.0, np.float64)]
        self.column = np.zeros(4)
        self.order = np.arange(9)
        self.statements = self.block(4)

    def pick(self, values):
        return values[self.rng.integers(len(values))]

    def less(self):
        both = [*self.cells, *range(-1, 6)]
        return Less(self.pick(both), self.pick(both))

    def block(self, depth):
        return tuple(self.statement(depth) for _ in range(3))

    def statement(self, depth):
        kind = self.rng.integers(5 if depth else 4)
        if kind == 0:
            return Set(self.pick(self.cells), self.pick([*self.cells, 3, 0]))
        if kind == 1:
            return Add(self.pick(self.cells), int(self.rng.integers(-2, 4)))
        if kind == 2:
            row = Cell(int(self.rng.integers(4)))
            weight = self.pick([*self.cells, 2])
            return Mean(self.column, row, self.pick(self.totals), weight)
        if kind == 3:
            return ShuffleOrder(self.order, *self.cells[:2])
        count = Cell(0)
        body = (*self.block(depth - 1), Add(count, 1))
        always = Less(count, 2) if self.rng.integers(2) else None
        return While((Less(count, 3), self.less(), self.less()), body, always)

    def found(self, strategy):
        strategy(TrainingLoop(Run(evaluation((), 1, 1)), self.statements)).run()
        cells = [cell.value for cell in self.cells]
        return cells, self.column.tolist(), self.order.tolist()


@pytest.mark.parametrize("seed", range(60))
def test_statements_mean_the_same_natively_and_in_python(seed):
    native, python = Drawn(seed).found(NativeLoop), Drawn(seed).found(PythonLoop)
    np.testing.assert_equal(native, python)


def test_an_order_is_that_of_its_seed_and_epoch():
    order = np.arange(9)
    shuffle = ShuffleOrder(order, Cell(-3), Cell(2**40))
    NativeLoop(TrainingLoop(Run(evaluation((), 1, 1)), (shuffle,))).run()
    np.testing.assert_array_equal(order, permutation(9, -3, 2**40))


def described(several=False, **options):
    x = sg.input("x", ("batch", 3))
    a, b = sg.parameter(np.ones(3, "f4")), sg.parameter(np.ones(3, "f4"))
    losses = [sg.mean((x @ a - 1) ** 2), sg.mean((x @ (a - b)) ** 2)]
    phases = [(losses[0], sg.optim.SGD(0.1), a), (losses[1], sg.optim.SGD(0.1), b)]
    trainer = sg.Trainer(phases[: 1 + several], target="reference", **options)
    data = {"x": X}
    trainer.fit(data, validation=data, batch_size=5, epochs=2, progress=False)
    data = trainer._dataset(data, None)
    return trainer._training(trainer._last, data, data)


def test_what_a_loop_is_made_of():
    plain, phases, groups = (
        described(), described(several=True), described(several=True, accumulate=3)
    )  # fmt: skip
    assert [loop.is_plain for loop in (plain, phases, groups)] == [True, False, False]
    assert [len(step.tasks) for step in plain.steps] == [1, 1]
    assert [len(step.tasks) for step in phases.steps] == [2, 1]
    # each phase of a group has steps and a commit; only the first may stop the loop
    assert [len(step.tasks) for step in groups.steps] == [1, 1, 1]
    assert [step.stops for step in groups.steps] == [True, False, True]
    (epochs,) = groups.statements
    first, *last = epochs.body[1].body
    found = [s for s in (*first.body, *last) if isinstance(s, GroupCommit)]
    assert [commit.stops for commit in found] == [True, False]
