"""Poison mode: memory whose life is over holds NaN, so a wrong plan shows.

The verifier would refuse these plans; poison is what finds a mistake that planner and
verifier share. So the plans here are wrong on purpose and not verified.
"""

from dataclasses import replace

import numpy as np
import pytest

import staticgrad as sg
from staticgrad.compiler.memory import planner
from staticgrad.compiler.verify.verify_plan import verify_plan
from staticgrad.errors import CompilerBug

X = np.linspace(0.1, 1, 12, dtype=np.float32).reshape(4, 3)
RIGHT = planner.plan


def compiled(**options):
    """A graph whose products keep three buffers in the arena."""
    with sg.Graph():
        x = sg.input("x", ("n", 3))
        w = sg.parameter(np.eye(3, dtype=np.float32), name="w")
        a = sg.tanh(x @ w)
        b = sg.tanh(a @ w)
        return sg.compile(sg.tanh(b @ w) + a, **options)


def buffers_in_arena(plan):
    return [n for n, offset in enumerate(plan.offsets) if offset >= 0]


def too_short(schedule, values):
    """The longest life ends one kernel too early."""
    plan = RIGHT(schedule, values)
    last = list(plan.last)
    longest = max(buffers_in_arena(plan), key=lambda n: plan.last[n] - plan.first[n])
    last[longest] = plan.last[longest] - 1
    return replace(plan, last=tuple(last))


def test_a_right_plan_gives_no_nan():
    expected = compiled()(X)
    np.testing.assert_array_equal(compiled(poison=True)(X), expected)
    assert np.isfinite(expected).all()


def test_a_read_of_freed_bytes_is_nan(monkeypatch):
    monkeypatch.setattr(planner, "plan", too_short)
    f = compiled(poison=True, verify=False)
    assert np.isnan(f(X)).any()
    assert np.isfinite(compiled(verify=False)(X)).all()  # without poison it hides


def test_the_verifier_refuses_the_same_plan(monkeypatch):
    monkeypatch.setattr(planner, "plan", too_short)
    with pytest.raises(CompilerBug):
        compiled()(X)


def test_overlapping_offsets_show_or_are_refused(monkeypatch):
    def stacked(schedule, values):
        plan = RIGHT(schedule, values)
        offsets = [min(offset, 0) for offset in plan.offsets]
        return replace(plan, offsets=tuple(offsets))

    expected = compiled()(X)
    monkeypatch.setattr(planner, "plan", stacked)
    with pytest.raises(CompilerBug):
        compiled()(X)
    plan = compiled(verify=False, sizes={"n": 4}).memory.plan
    assert len(buffers_in_arena(plan)) > 1
    with pytest.raises(CompilerBug):
        verify_plan(plan)
    found = compiled(poison=True, verify=False)(X)
    assert not np.array_equal(found, expected)
