"""The virtual machine: each instruction, labels, nesting, stop, cache."""

import itertools
import subprocess
import sys
import threading
import time

import llvmlite.binding as llvm
import numpy as np
import pytest

from staticgrad.compiler.runtime import calling, vm
from staticgrad.compiler.runtime.assembler import Assembler, Cell
from staticgrad.errors import CompilerBug
from staticgrad.ops.random.philox import philox


def run(assembler, stop=0):
    return assembler.finish().run(Cell(stop))


def test_an_empty_program_finishes():
    assert run(Assembler()) == vm.FINISHED


def test_cells_count_and_jump():
    a = Assembler()
    i, twice = a.cell("i"), a.cell("twice", 5)
    start = a.place()
    a.add(i, 1)
    a.add(twice, 2)
    a.jump_if_less(i, 10, start)
    assert run(a) == vm.FINISHED
    assert (i.value, twice.value) == (10, 25)
    assert a.cells["i"] is i


def test_jumps_forward_over_what_is_skipped():
    a = Assembler()
    x, after = a.cell("x", 3), a.label()
    a.jump(after)
    a.set(x, 99)
    a.place(after)
    a.add(x, -1)
    run(a)
    assert x.value == 2


def test_jump_if_less_compares_signed():
    for left, right in itertools.product((-5, 0, 7), repeat=2):
        a = Assembler()
        x, after = a.cell("x"), a.label()
        a.jump_if_less(left, right, after)
        a.set(x, 1)
        a.place(after)
        run(a)
        assert x.value == (0 if left < right else 1)


def test_set_copies_numbers_of_the_cells_dtype():
    a = Assembler()
    x, y, n = a.real("x"), a.real("y", 2.5), a.cell("n", 7)
    a.set(x, y)
    a.set(y, -1)
    a.set(n, 3)
    run(a)
    assert (x.value, y.value, n.value) == (2.5, -1.0, 3)


def test_programs_run_programs():
    inner = Assembler()
    count = inner.cell("count")
    inner.add(count, 1)
    inner.end()
    inner.add(count, 100)
    middle = Assembler()
    one = inner.finish()
    middle.run(one)
    middle.run(one)
    outer = Assembler()
    middle = middle.finish()
    outer.run(middle)
    outer.run(middle)
    outer.run(one)
    assert run(outer) == vm.FINISHED
    assert count.value == 5


def test_nesting_has_a_limit():
    program = Assembler().finish()
    for _ in range(vm.MOST_NESTED - 1):
        a = Assembler()
        a.run(program)
        program = a.finish()
    assert program.run(Cell(0)) == vm.FINISHED
    a = Assembler()
    with pytest.raises(CompilerBug, match="nested more than"):
        a.run(program)


def test_fill_and_copy():
    a = Assembler()
    x, y = np.arange(10.0), np.arange(10, 20.0)
    a.copy(x, y)
    a.fill(y)
    run(a)
    assert (x == np.arange(10, 20)).all()
    assert (y == 0).all()


def shuffled(count, seed, epoch):
    a = Assembler()
    order = np.full(count + 1, -7)
    a.shuffle(order, count, a.cell("seed", seed), a.cell("epoch", epoch))
    run(a)
    assert order[-1] == -7
    return order[:-1]


def by_hand(count, seed, epoch):
    order = list(range(count))
    for last in range(count - 1, 0, -1):
        words = philox((last, 0, epoch, 0), (seed, 0))
        other = (int(words[0]) + (int(words[1]) << 32)) * (last + 1) >> 64
        order[last], order[other] = order[other], order[last]
    return order


@pytest.mark.parametrize("count", [0, 1, 2, 50])
def test_shuffle_is_the_one_described(count):
    assert shuffled(count, 3, 11).tolist() == by_hand(count, 3, 11)


def test_shuffles_are_permutations_that_differ_by_seed_and_epoch():
    orders = [
        tuple(shuffled(1000, seed, epoch)) for seed in range(3) for epoch in range(3)
    ]
    assert len(set(orders)) == 9
    assert all(sorted(order) == list(range(1000)) for order in orders)


def test_all_orders_are_equally_likely():
    counts = dict.fromkeys(itertools.permutations(range(3)), 0)
    for epoch in range(3000):
        counts[tuple(shuffled(3, 1, epoch).tolist())] += 1
    # 500 expected, standard deviation 20
    assert all(400 < count < 600 for count in counts.values())


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("dtype", ["int8", "float32", "float64"])
def test_gather_takes_along_an_axis(axis, dtype):
    source = np.arange(5 * 6 * 7).reshape(5, 6, 7).astype(dtype)
    order = np.array([4, 0, 3, 1, 2], np.int64)
    shape = list(source.shape)
    shape[axis] = 2
    target = np.zeros(shape, dtype)
    a = Assembler()
    a.gather(target, source, order, a.cell("position", 1), 2, axis)
    run(a)
    assert (target == np.take(source, [0, 3], axis)).all()


def test_gather_refuses_other_rows():
    a, order = Assembler(), np.zeros(1, np.int64)
    with pytest.raises(CompilerBug, match="equal rows"):
        a.gather(np.zeros((1, 3)), np.zeros((5, 4)), order, Cell(0), 1)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32", "bool"])
def test_record_and_mean(dtype):
    a = Assembler()
    scalar = np.array(1, dtype)
    total, history = a.real("total", 2.0), np.full(3, np.nan)
    a.record(total, scalar, weight=5)
    a.mean(history, 1, total, 4)
    a.mean(history, 2, total, 0)
    run(a)
    assert total.value == 7
    np.testing.assert_array_equal(history, [np.nan, 1.75, np.nan])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int64", "bool"])
def test_jumps_where_a_scalar_is_not_finite(dtype):
    values = [0, 1] + [np.nan, np.inf, -np.inf] * (dtype[0] == "f")
    a = Assembler()
    cells = [a.cell(f"cell {n}") for n in range(len(values))]
    for value, cell in zip(values, cells, strict=True):
        after = a.label()
        a.jump_unless_finite(np.array(value, dtype), after)
        a.set(cell, 1)
        a.place(after)
    run(a)
    assert [cell.value for cell in cells] == np.isfinite(values).tolist()


def test_poll_stops_a_loop_that_would_not_end():
    a = Assembler()
    steps = a.cell("steps")
    start = a.place()
    a.poll()
    a.add(steps, 1)
    a.jump(start)
    program, stop, codes = a.finish(), Cell(0), []
    thread = threading.Thread(target=lambda: codes.append(program.run(stop)))
    thread.start()
    while steps.value < 1000:  # the GIL is free, so this thread goes on
        time.sleep(0.001)
    stop.value = 1
    thread.join(5)
    assert codes == [vm.STOPPED]
    assert program.run(Cell(1)) == vm.STOPPED


def test_mistakes_of_the_caller_are_found():
    a = Assembler()
    a.cell("x")
    with pytest.raises(CompilerBug, match="two cells"):
        a.real("x")
    label = a.place()
    with pytest.raises(CompilerBug, match="placed twice"):
        a.place(label)
    with pytest.raises(CompilerBug, match="C-order"):
        a.fill(np.zeros((3, 3))[:, 1])
    with pytest.raises(CompilerBug, match="one size"):
        a.copy(np.zeros(3), np.zeros(4))
    with pytest.raises(CompilerBug, match="float64"):
        a.mean(np.zeros(3, np.float32), 0, Cell(0), 1)
    with pytest.raises(CompilerBug, match="vector of int64"):
        a.shuffle(np.zeros(3), 3, Cell(0), Cell(0))
    a.jump(a.label())
    with pytest.raises(CompilerBug, match="not placed"):
        a.finish()


def counting(laps):
    """A program that counts to `laps`, and the cell in which it does."""
    a = Assembler()
    cell, start = a.cell("laps"), a.place()
    a.add(cell, 1)
    a.jump_if_less(cell, laps, start)
    return a.finish(), cell


def ways_to_call():
    """The machine as Python calls it, and without code of our own."""
    vm.load()
    address = llvm.address_of_symbol(calling.SYMBOL)
    return [vm.load(), calling.by_ctypes(address)]


@pytest.mark.parametrize("way", [0, 1])
def test_both_ways_to_call_run_programs_and_give_codes(way):
    machine = ways_to_call()[way]
    program, cell = counting(1000)
    stop = Cell(0)
    assert machine(program.pc, stop.address) == vm.FINISHED
    assert cell.value == 1000
    a = Assembler()
    a.poll()
    stop.value = 1
    assert machine(a.finish().pc, stop.address) == vm.STOPPED


@pytest.mark.parametrize("way", [0, 1])
def test_both_ways_to_call_let_other_threads_run(way):
    machine = ways_to_call()[way]
    a = Assembler()
    start = a.place()
    a.poll()
    a.jump(start)
    stop = Cell(0)
    thread = threading.Timer(0.01, lambda: setattr(stop, "value", 1))
    thread.start()
    assert machine(a.finish().pc, stop.address) == vm.STOPPED
    thread.join()


def test_a_call_without_llvm_goes_by_ctypes(monkeypatch):
    vm.load()
    address = llvm.address_of_symbol(calling.SYMBOL)

    def broken():
        raise AttributeError

    monkeypatch.setattr(calling.internals, "module_header", broken)
    machine = calling.callable_machine(address)
    program, cell = counting(3)
    assert machine(program.pc, Cell(0).address) == vm.FINISHED
    assert cell.value == 3


SCRIPT = """
import warnings
warnings.simplefilter("error")
from staticgrad.compiler.runtime import thread_pool as pool, vm
from staticgrad.compiler.runtime.assembler import Assembler, Cell
pool.available = bool  # Numba caches the launch of its own layers alone
print(Assembler().finish().run(Cell(0)), vm._launches[0].cache_hits)
"""


def in_new_process(environment):
    import os

    found = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout.split()


@pytest.mark.slow
def test_the_machine_comes_from_the_cache_or_works_without(tmp_path):
    folder = {"NUMBA_CACHE_DIR": str(tmp_path)}
    assert in_new_process(folder) == ["0", "0"]
    assert in_new_process(folder) == ["0", "1"]
    for file in tmp_path.rglob("*.nbi"):
        file.write_bytes(b"corrupt")
    assert in_new_process(folder)[0] == "0"
    for file in tmp_path.rglob("*.nbc"):
        file.write_bytes(file.read_bytes()[:100])
    assert in_new_process(folder)[0] == "0"
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    assert in_new_process({"NUMBA_CACHE_DIR": str(blocked / "x")})[0] == "0"
