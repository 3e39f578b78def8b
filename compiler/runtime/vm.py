"""Virtual machine: one compiled function that runs every program.

A program is a table of int64, sixteen words a row; addresses in it are absolute, so one
`machine(pc, stop)` serves all graphs and training loops. It is compiled once per
machine and cached on disk: translated as kernels are, but for the launch of Numba's
layers of threads, which Numba compiles. The instructions and their words are listed in
README.md.

A parallel launch hands the chunks of one kernel to workers. A worker takes the chunks
of its own part, one by one, then those that are left of others', and has a context
(scratch memory) of its own; which worker computes a chunk does not change its bits. A
serial run walks the same chunks.

Weakness: a launch waits for all of its chunks, so short kernels in a row gain from
threads only as a region (regions.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cfunc, njit, prange, types

from staticgrad.compiler.codegen.llvm import pointers
from staticgrad.compiler.codegen.llvm.pointers import (
    atomic_exchange,
    atomic_load,
    call_get,
    call_kernel,
    call_set,
    copy_bytes,
    fill_bytes,
    float64_bits,
    load_int8,
    load_int32,
    load_int64,
    local_words,
    store_int64,
)
from staticgrad.compiler.codegen.native_compile import compiled_once
from staticgrad.compiler.codegen.status import RAISED
from staticgrad.compiler.host.cache import kernel_key
from staticgrad.compiler.host.disk import cached_or_not, stamp_of
from staticgrad.compiler.host.locks import fork_safe_lock
from staticgrad.compiler.runtime import (
    minibatch_sampling,
    revolve,
    scalar_reads,
    thread_pool,
    threads,
)
from staticgrad.compiler.runtime.calling import Machine, callable_machine
from staticgrad.compiler.runtime.minibatch_sampling import gather_rows, shuffle
from staticgrad.compiler.runtime.scalar_reads import is_finite, mean, record, scalar
from staticgrad.compiler.runtime.thread_pool import chunk, share_out, take

ROW_BYTES = thread_pool.ROW_BYTES
WORDS = ROW_BYTES // 8

(END, CALL, COMMIT, RUN, FILL, COPY, SHUFFLE, GATHER, RECORD, MEAN, ADD, SET, JUMP,
 JUMP_IF_LESS, POLL, LINK, LISTEN, ENTER, AGAIN, UNLESS, LIMIT,
 SPREAD, NEXT, KEEP, NOTE, JUMP_UNLESS_FINITE) = range(26)  # fmt: skip

FINISHED, STOPPED, MISFIT = 0, -1, -2
NON_FINITE, LOOP_LIMIT = 2, 3

TARGET_WORD, STATUS_WORD = 5, 8
"""Words of control flow: where to go on, and the address of the status."""

DEAF_WORD = 4
"""The word of COMMIT and LISTEN that makes them ignore the stop cell."""

STATUS_WORDS = 8
(STATUS_LOCK, STATUS_CODE, STATUS_SITE, STATUS_POSITION, STATUS_VALUE,
 STATUS_EXTENT, STATUS_STOP, STATUS_NEVER) = range(8)  # fmt: skip

MOST_NESTED = pointers.STACK_WORDS


@njit(nogil=True, parallel=True)
def _launch(pc: int, first: int, rows: int, workers: int, mask: int) -> None:
    """Run the chunks that the row at `pc` counts, each of `rows` from `first` on."""
    next_chunks = local_words()
    share_out(pc, workers, next_chunks)
    cells = load_int64(pc, 11)
    getter, setter = (
        load_int64(cells, threads.GET_MASK), load_int64(cells, threads.SET_MASK),
    )  # fmt: skip
    before = call_get(getter) if getter else 0
    if before:
        call_set(setter, mask)
    for worker in prange(workers):
        take(pc, first, rows, workers, worker, next_chunks)
    if before:
        call_set(setter, before)


@njit(nogil=True)
def _call(pc: int) -> None:
    """Run all chunks of the kernel at `pc`, by several workers where that pays."""
    if not _shared(pc, pc, 1):
        for number in range(load_int64(pc, 6)):
            chunk(pc, number, load_int64(pc, 7))


@njit(nogil=True)
def _spread(pc: int) -> int:
    """Run a region in parallel and return the row after it, or else the next row."""
    rows = load_int64(pc, 1)
    if _shared(pc, pc + ROW_BYTES, rows):
        return pc + (rows + 1) * ROW_BYTES
    return pc + ROW_BYTES


@njit(nogil=True)
def _shared(pc: int, first: int, rows: int) -> bool:
    """Run `rows` from `first` on by several workers, if that pays; return whether."""
    cells = load_int64(pc, 11)
    workers = min(load_int64(pc, 9), load_int64(cells, threads.WORKERS))
    workers = min(workers, load_int64(pc, 6))
    exclusive = load_int64(cells, threads.EXCLUSIVE)
    lock = cells + 8 * threads.LOCK
    alone = workers < 2 or load_int64(pc, 10) < load_int64(cells, threads.LEAST_WORK)
    if alone or (exclusive and atomic_exchange(lock, 1) != 0):
        return False
    mask = min(workers, load_int64(cells, threads.MASK))
    call_kernel(load_int64(cells, threads.LAUNCH), pc, first, rows, workers, mask)
    if exclusive:
        atomic_exchange(lock, 0)
    return True


@njit(nogil=True)
def _commit(pc: int, stop: int) -> int:
    """Return the code of a step that ends before it has written anything, or 0.

    After a stop what kernels report is no news: they read what loops left undone.
    """
    status, table = load_int64(pc, 1), load_int64(pc, 2)
    code = load_int64(status, STATUS_CODE)
    is_deaf = load_int64(pc, DEAF_WORD) != 0
    if code < RAISED and not is_deaf and atomic_load(stop) != 0:
        store_int64(status, STATUS_CODE, FINISHED)
        return STOPPED
    if code != FINISHED:
        return code
    for position in range(load_int64(pc, 3)):
        kind = load_int64(table, 2 * position + 1)
        value = scalar(load_int64(table, 2 * position), kind)
        if not np.isfinite(value):
            store_int64(status, STATUS_CODE, NON_FINITE)
            store_int64(status, STATUS_SITE, -1)
            store_int64(status, STATUS_POSITION, position)
            store_int64(status, STATUS_VALUE, float64_bits(value))
            return NON_FINITE
    _listen(status, status + 8 * STATUS_NEVER)
    return FINISHED


@njit(nogil=True)
def _listen(status: int, stop: int) -> None:
    """Make loops inside of kernels poll the cell `stop`."""
    store_int64(status, STATUS_STOP, stop)


@njit(nogil=True)
def _stopping(op: int, pc: int, stop: int) -> int:
    """Return the code with which COMMIT, POLL or LINK ends the run, or 0."""
    if op == COMMIT:
        return _commit(pc, stop)
    if op == LISTEN and load_int64(pc, DEAF_WORD) == 0:
        _listen(load_int64(pc, 1), stop)
    if op == POLL and atomic_load(stop) != 0:
        return STOPPED
    if op == LINK:
        return _link(pc)
    return FINISHED


@njit(nogil=True)
def _move(pc: int, steps: int) -> None:
    """Move the windows of a loop by so many steps."""
    moves = load_int64(pc, 3)
    for number in range(load_int64(pc, 4)):
        word = load_int64(moves, 2 * number)
        distance = load_int64(moves, 2 * number + 1)
        store_int64(word, 0, load_int64(word, 0) + steps * distance)


@njit(nogil=True)
def _is_over(pc: int, stop: int, position: int) -> bool:
    """Whether a loop ends at `position`: the last one, a failure, or a stop."""
    if position == load_int64(pc, 7):
        return True
    if load_int64(load_int64(pc, STATUS_WORD), STATUS_CODE) != FINISHED:
        return True
    return load_int64(pc, 9) != 0 and atomic_load(stop) != 0


@njit(nogil=True)
def _again(pc: int, stop: int) -> int:
    """Advance a loop; the windows return to their start when the loop is over."""
    counter = load_int64(pc, 1)
    position = load_int64(counter, 0)
    if _is_over(pc, stop, position):
        _move(pc, -position)
        return pc + ROW_BYTES
    step = load_int64(pc, 6)
    store_int64(counter, 0, position + step)
    _move(pc, step)
    return load_int64(pc, TARGET_WORD)


@njit(nogil=True)
def _enter(pc: int) -> int:
    first = load_int64(pc, 2)
    store_int64(load_int64(pc, 1), 0, first)
    if load_int64(pc, 10) != 0:
        return load_int64(pc, TARGET_WORD)
    _move(pc, first)
    return pc + ROW_BYTES


@njit(nogil=True)
def _unless(pc: int) -> int:
    address = load_int64(pc, 1)
    found = load_int64(address, 0) if load_int64(pc, 3) == 8 else load_int8(address, 0)
    if found != load_int64(pc, 2):
        return load_int64(pc, TARGET_WORD)
    return pc + ROW_BYTES


@njit(nogil=True)
def _limit(pc: int) -> int:
    """Report a loop that continues after its last step."""
    limit = load_int64(pc, 2)
    if load_int64(load_int64(pc, 1), 0) < limit:
        return pc + ROW_BYTES
    status = load_int64(pc, STATUS_WORD)
    if load_int64(status, STATUS_CODE) == FINISHED:
        store_int64(status, STATUS_CODE, LOOP_LIMIT)
        store_int64(status, STATUS_SITE, load_int64(pc, 3))
        store_int64(status, STATUS_VALUE, limit)
    return load_int64(pc, TARGET_WORD)


@njit(nogil=True)
def _next(pc: int, stop: int) -> int:
    """Return the jump to the next action of a replay; see revolve.py."""
    state, window = load_int64(pc, 1), load_int64(pc, 13)
    count = load_int64(load_int64(pc, 12), 0)
    before = load_int64(state, revolve.WINDOW)
    if load_int64(load_int64(pc, STATUS_WORD), STATUS_CODE) != FINISHED or (
        load_int64(pc, 9) != 0 and atomic_load(stop) != 0
    ):
        _move(pc, -before)
        return load_int64(pc, 10)
    action = revolve.decide(state, count, load_int64(pc, 2))
    position = load_int64(state, revolve.POSITION)
    if action == revolve.DONE:
        position = 0
    _move(pc, position - before)
    store_int64(state, revolve.WINDOW, position)
    store_int64(window, 0, position)
    if action == revolve.FORWARD:
        return pc + ROW_BYTES
    if action == revolve.BACK:
        return load_int64(pc, 5)
    if action == revolve.STORE:
        return load_int64(pc, 6)
    return load_int64(pc, 7) if action == revolve.RESTORE else load_int64(pc, 10)


@njit(nogil=True)
def _keep(pc: int) -> int:
    """Copy a carry to or from the place of a snapshot."""
    size = load_int64(pc, 4)
    slot = load_int64(load_int64(pc, 3), revolve.SLOT)
    carry, place = load_int64(pc, 1), load_int64(pc, 2) + slot * size
    if load_int64(pc, 5) != 0:
        copy_bytes(carry, place, size)
    else:
        copy_bytes(place, carry, size)
    return pc + ROW_BYTES


@njit(nogil=True)
def _note(pc: int) -> int:
    """Note a state if its snapshot is due, and return the row to continue at."""
    if revolve.note(load_int64(pc, 1), load_int64(pc, 2)):
        return pc + ROW_BYTES
    return load_int64(pc, TARGET_WORD)


@njit(nogil=True)
def _flow(op: int, pc: int, stop: int) -> int:
    """Return the row after one of control flow."""
    if op == AGAIN:
        return _again(pc, stop)
    if op == ENTER:
        return _enter(pc)
    if op == UNLESS:
        return _unless(pc)
    if op == SPREAD:
        return _spread(pc)
    if op == NEXT:
        return _next(pc, stop)
    if op == KEEP:
        return _keep(pc)
    if op == NOTE:
        return _note(pc)
    if op == JUMP_UNLESS_FINITE:
        return pc + ROW_BYTES if is_finite(pc) else load_int64(pc, 3)
    return _limit(pc)


@njit(nogil=True)
def _link(pc: int) -> int:
    """Write the data pointer of an array object to the words that name the array.

    MISFIT if the object is no array of the dtype and shape that are expected.
    """
    fields, targets = load_int64(load_int64(pc, 1), 0), load_int64(pc, 2)
    fields += load_int64(pc, 4)
    wanted = load_int64(pc, 5)
    if wanted and not _is_as(fields, wanted):
        return MISFIT
    data = load_int64(fields, 0)
    for number in range(load_int64(pc, 3)):
        store_int64(load_int64(targets, number), 0, data)
    return FINISHED


@njit(nogil=True)
def _is_as(fields: int, wanted: int) -> bool:
    """Whether an array object has the type, dtype, flags and sizes in `wanted`.

    The fields are those of NumPy's PyArrayObject_fields; the type stands before them.
    """
    if load_int64(fields - 8, 0) != load_int64(wanted, 0):
        return False
    rank, mask = load_int64(wanted, 3), load_int64(wanted, 2)
    flags = np.int64(load_int32(fields + 48, 0))
    if load_int64(fields, 5) != load_int64(wanted, 1) or flags & mask != mask:
        return False
    if np.int64(load_int32(fields + 8, 0)) != rank:
        return False
    sizes = load_int64(fields, 2)
    for axis in range(rank):
        if load_int64(sizes, axis) != load_int64(wanted, 4 + axis):
            return False
    return True


@njit(nogil=True)
def _step(op: int, pc: int) -> None:
    """Run one of the short instructions, after which the next row follows."""
    if op == FILL:
        fill_bytes(load_int64(pc, 1), load_int64(pc, 2), load_int64(pc, 3))
    elif op == COPY:
        copy_bytes(load_int64(pc, 1), load_int64(pc, 2), load_int64(pc, 3))
    elif op == SHUFFLE:
        shuffle(pc)
    elif op == GATHER:
        gather_rows(pc)
    elif op == RECORD:
        record(pc)
    elif op == MEAN:
        mean(pc)
    elif op == ADD:
        cell = load_int64(pc, 1)
        total = load_int64(cell, 0) + load_int64(load_int64(pc, 2), 0)
        store_int64(cell, 0, total)
    elif op == SET:
        store_int64(load_int64(pc, 1), 0, load_int64(load_int64(pc, 2), 0))


@njit(nogil=True)
def _run(pc: int, stop: int) -> int:
    """Run the program at `pc` and return its exit code."""
    stack, depth = local_words(), 0
    while True:
        op = load_int64(pc, 0)
        if op == CALL:
            _call(pc)
            pc += ROW_BYTES
        elif op >= ENTER:
            pc = _flow(op, pc, stop)
        elif op == END:
            if depth == 0:
                return FINISHED
            depth -= 1
            pc = load_int64(stack, depth)
        elif op == RUN:
            store_int64(stack, depth, pc + ROW_BYTES)
            depth += 1
            pc = load_int64(pc, 1)
        elif op == JUMP:
            pc = load_int64(pc, 1)
        elif op == JUMP_IF_LESS:
            left = load_int64(load_int64(pc, 1), 0)
            less = left < load_int64(load_int64(pc, 2), 0)
            pc = load_int64(pc, 3) if less else pc + ROW_BYTES
        else:
            code = _stopping(op, pc, stop)
            if code != FINISHED:
                return code
            _step(op, pc)
            pc += ROW_BYTES


def _machine(pc: int, stop: int, result: int) -> None:
    store_int64(result, 0, _run(pc, stop))


def _build_launch(stamp: str, cache: bool) -> Any:
    """Compile the parallel launch as a C function: only Numba can."""

    @cfunc(types.void(*[types.int64] * 5), cache=cache)
    def launch(pc: int, first: int, rows: int, workers: int, mask: int) -> None:
        stamp  # noqa: B018  # a free variable: Numba's key of the cached object code
        _launch(pc, first, rows, workers, mask)

    return launch


_compiling = fork_safe_lock()
_loaded: list[Machine] = []
_launches: list[Any] = []  # keeps the launch's code


def _start_threads(stamp: str) -> None:
    threads.start(own=thread_pool.available())
    cells = threads.CELLS
    if threads.layer() == threads.OWN:
        cells[threads.LAUNCH], work = thread_pool.addresses()
        cells[threads.POOL] = thread_pool.ThreadPool(threads.others(), work).address
    elif threads.layer():
        _launches.append(cached_or_not(_build_launch, stamp))
        cells[threads.LAUNCH] = _launches[0].address


def load() -> Machine:
    """Return the machine, compiled or loaded from the caches at the first call."""
    if not _loaded:
        with _compiling:
            if not _loaded:
                used = (
                    pointers,
                    thread_pool,
                    minibatch_sampling,
                    scalar_reads,
                    revolve,
                    threads,
                )
                stamp = stamp_of(__file__, *(module.__file__ for module in used))
                _start_threads(stamp)
                address = compiled_once(_machine, kernel_key(f"machine {stamp}"))
                _loaded.append(callable_machine(address))
    return _loaded[0]


def run(pc: int, stop: int) -> int:
    """Run the program at address `pc`; the GIL is released meanwhile.

    `stop` is the address of an int64 that is not 0 when the run shall stop. Returns
    FINISHED, STOPPED, or the code that a kernel reported.
    """
    return load()(pc, stop)
