"""The comparison with define-by-run: are its engines right, and its counts?"""

import numpy as np
import pytest

from benchmarks import contrast
from benchmarks.contrast.engines import on_tape, static
from benchmarks.contrast.ledger import Ledger
from benchmarks.contrast.models import MODELS
from benchmarks.contrast.tape import Tape


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_the_tape_and_staticgrad_learn_alike_and_differ_in_cost(model):
    running = {"tape": on_tape(model), "staticgrad": static(model)}
    contrast._check_equal(model, running)
    tape, compiled = (one.count() for one in running.values())
    assert compiled.allocations == 0 < tape.allocations
    assert compiled.kernels < tape.kernels
    assert compiled.moved < tape.moved
    assert compiled.peak < tape.peak


def test_a_ledger_counts_what_is_alive():
    ledger = Ledger()
    one, two = np.zeros(10), np.zeros(5)
    ledger.allocated(one, id(one), one.nbytes)
    ledger.allocated(two, id(two), two.nbytes)
    ledger.allocated(two, id(two), two.nbytes)
    assert (ledger.allocations, ledger.alive, ledger.peak) == (2, 120, 120)
    del one
    assert (ledger.alive, ledger.peak) == (40, 120)
    ledger.ran(8, 16)
    assert (ledger.kernels, ledger.moved) == (1, 24)


def test_the_tape_notes_every_operation():
    ledger = Ledger()
    tape = Tape(ledger)
    x, w = tape.value(np.ones((2, 3))), tape.value(np.ones((3, 4)))
    loss = tape.mean(tape.tanh(tape.matmul(x, w)))
    assert ledger.kernels == 3
    dx, dw = tape.gradients(loss, [x, w])
    slope = (1 - np.tanh(3) ** 2) / 8
    np.testing.assert_allclose(dx, np.full((2, 3), 4 * slope), rtol=1e-6)
    np.testing.assert_allclose(dw, np.full((3, 4), 2 * slope), rtol=1e-6)
    assert ledger.kernels == 3 + 1 + 3 + 2


def test_the_chart_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    row = {"seconds": 1e-6, "kernels": 1, "allocations": 1, "moved": 1, "peak": 1024}
    found = {"a model": {"tape": row, "staticgrad": row}}
    contrast.draw(found, tmp_path / "chart.svg")
    assert "a model" in (tmp_path / "chart.svg").read_text()
    assert "1 us" in contrast.render(found)
