"""Instructions in the order in which they run, and the rows that are made of them."""

import numpy as np
from hand_made import FLOAT, N, elementwise, sums_of_exponentials

import staticgrad as sg
from staticgrad.compiler.kernel_ir.flat import FlatPlan, flatten
from staticgrad.compiler.kernel_ir.instruction_set import (
    Again,
    CallKernel,
    CommitPoint,
    Copy,
    End,
    Enter,
    Fill,
    Jump,
    JumpTarget,
    Limit,
    Listen,
    Next,
    RunRegion,
    Unless,
)
from staticgrad.compiler.kernel_ir.schedule import Buffer, Schedule
from staticgrad.compiler.memory import planner
from staticgrad.compiler.runtime import vm
from staticgrad.compiler.runtime.encoding import Table
from staticgrad.compiler.runtime.instructions import size
from staticgrad.compiler.runtime.native_code import compile_schedule
from staticgrad.ir.size import Size
from staticgrad.ir.types import INT64

NONE = Size.symbol("steps")


def instructions_of(y):
    return flatten(sg.compile(y).target.code.root).instructions


def test_a_branch_jumps_to_labels_behind_its_sides():
    x, i = sg.input("x", (8, 8)), sg.input("i", (), "int64")
    sides = [lambda x, k=k: sg.sort(x * k, axis=1) @ x for k in range(3)]
    found = instructions_of(sg.switch(i, sides, x))
    tests = [n for n, one in enumerate(found) if isinstance(one, Unless)]
    assert [found[n].value for n in tests] == [0, 1]
    labels = {
        one.number: n for n, one in enumerate(found) if isinstance(one, JumpTarget)
    }
    for n in tests:
        assert isinstance(found[labels[found[n].target] - 1], Jump)
    joins = {labels[one.target] for one in found if isinstance(one, Jump)}
    assert len(joins) == 1


def test_a_loop_goes_back_behind_its_beginning():
    x = sg.input("x", (8, 8))
    y = sg.fori_loop(0, 5, lambda _, h: sg.sort(h, axis=1) @ x, x)
    found = instructions_of(y)
    enter, again = (
        next(n for n, one in enumerate(found) if isinstance(one, kind))
        for kind in (Enter, Again)
    )
    assert found[enter + 1] == JumpTarget(found[again].target)
    assert found[again + 1] == JumpTarget(found[enter].target)
    assert any(isinstance(one, CallKernel) for one in found[enter:again])


def table_of(*instructions, sizes=(8, 8, 8, 8, 8, 8), **values):
    plan = FlatPlan((), sizes, (), (), ())
    kernels = np.arange(4 * vm.WORDS).reshape(4, vm.WORDS)
    return Table(instructions, plan, values, kernels)


def test_rows_and_what_waits_for_addresses():
    table = table_of(
        Listen(), Copy(0, 1), CallKernel(2), Unless(3, INT64, 7, 0), CallKernel(0),
        JumpTarget(0), CommitPoint(), Fill(2), End(), sizes=(24, 8, 16, 8),
    )  # fmt: skip
    assert table.rows[:, 0].tolist() == [
        vm.LISTEN, vm.COPY, 2 * vm.WORDS, vm.UNLESS, 0, vm.COMMIT, vm.FILL, vm.END,
    ]  # fmt: skip
    assert table.rows[1, :4].tolist() == [vm.COPY, 0, 0, 24]
    assert table.rows[3, :4].tolist() == [vm.UNLESS, 0, 7, 8]
    assert table.rows[6, :4].tolist() == [vm.FILL, 0, 0xFF, 16]
    assert table.called.tolist() == [2, 0]
    assert table.kernel_rows.tolist() == [2, 4]
    assert (table.commit_row, table.deaf_rows) == (5, [0, 5])
    assert table.references.tolist() == [[1, 1, 1], [1, 2, 0], [3, 1, 3], [6, 1, 2]]
    assert table.jumps.tolist() == [[3, vm.TARGET_WORD, 5]]


def test_rows_of_loops():
    def turn(kind, length, reverse, **sizes):
        table = table_of(JumpTarget(4), kind(1, 2, length, reverse, 4), **sizes)
        assert table.loops == [(0, 3, 2)]
        assert table.jumps.tolist() == [[0, vm.TARGET_WORD, 0]]
        has_status = table.statuses.tolist() == [[0, vm.STATUS_WORD]]
        assert has_status == (kind is Again)
        (row,) = table.rows.tolist()
        return row[2], row[6], row[7], row[10]  # first, step, last, none

    assert turn(Enter, 5, False) == (0, 1, 4, 0)
    assert turn(Enter, 5, True) == (4, -1, 0, 0)
    assert turn(Again, NONE, False, steps=3) == (0, 1, 2, 0)
    assert turn(Enter, NONE, False, steps=0) == (0, 1, -1, 1)
    assert turn(Enter, None, False) == (0, 1, -1, 0)


def test_what_the_status_is_told():
    table = table_of(
        JumpTarget(0),
        Limit(1, 9, 3, None, 0),
        CommitPoint(),
        Next(0, 1, 2, 0, 4, False, (0,) * 4),
    )
    assert table.rows[0, :4].tolist() == [vm.LIMIT, 0, 9, 3]
    assert table.statuses.tolist() == [[0, vm.STATUS_WORD], [1, 1], [2, vm.STATUS_WORD]]
    assert [word for row, word, _ in table.jumps.tolist() if row == 2] == [5, 6, 7, 10]


def test_a_region_counts_the_work_of_its_kernels():
    table = table_of(RunRegion(1, 3, 6), CallKernel(1), CallKernel(2))
    assert table.rows[0, 1] == 2
    assert table.rows[0, 6] == 6
    assert table.rows[0, 10] == table.rows[1:, 10].sum()
    assert table.spread_rows == [0]


def test_copies_and_poison_stand_where_they_belong():
    schedule = sums_of_exponentials()
    code = compile_schedule(schedule)
    sized = size(code, planner.plan(schedule, {"n": 1_000_001}), poison=True)
    ends = (vm.COMMIT, vm.COPY, vm.END)
    runs = (vm.CALL, vm.CALL, vm.CALL, vm.FILL, vm.CALL, vm.FILL)
    assert sized.table.rows[:, 0].tolist() == [vm.FILL, vm.FILL, vm.COPY, *runs, *ends]


def test_the_commit_has_its_place_among_kernels():
    buffers = (
        Buffer(0, "input", (N,), FLOAT, "x", 0),
        Buffer(1, "output", (N,), FLOAT, "y", 0),
        Buffer(2, "output", (N,), FLOAT, "z", 1),
    )
    kernels = (elementwise("{0}", 0, 1), elementwise("{0}", 0, 2))
    for commit in range(3):
        found = flatten(Schedule(buffers, kernels, commit, (1, 2))).instructions
        expected = [CallKernel(0), CallKernel(1)]
        expected.insert(commit, CommitPoint())
        assert list(found) == expected
