"""Thread pool of our own, which takes chunks of a launch beside the caller.

The caller opens a gate, takes chunks until none is left, closes the gate and waits for
those who are inside. Whoever the system has not let run by then is not waited for, so
where other programs use the cores, a launch takes about as long as on one thread.
OpenMP waits for all of its threads at every launch, and between launches they spin
until the system takes their time away: with other programs on the second core a step of
20 layers of 64 took 3 to 8 ms, which is 0.16 on one thread, and takes 0.2 to 0.5 here.

Between launches a thread looks at the gate for some microseconds, then sleeps; a launch
that has a part for it wakes it. One launch runs at a time. The functions are POSIX's,
called by address; where there are none, Numba's layers are used (threads.py).
"""

from __future__ import annotations

import atexit
import ctypes
import os
from collections.abc import Iterator
from functools import cache

import numpy as np
from numba import njit

from staticgrad.compiler.codegen.llvm import pointers
from staticgrad.compiler.codegen.llvm.pointers import (
    atomic_add,
    atomic_exchange,
    atomic_load,
    call_get,
    call_kernel,
    caller,
    load_int64,
    pause,
    store_int64,
)
from staticgrad.compiler.codegen.native_compile import compiled_once
from staticgrad.compiler.host.cache import kernel_key
from staticgrad.compiler.host.disk import stamp_of
from staticgrad.compiler.runtime import threads

ROW_BYTES = 128
"""Of an instruction; see vm.py."""

LOOKS = 6000  # polls of the gate before a thread sleeps: about 100 us
PATIENCE = 1000  # polls of busy workers before the caller yields its core

LINE = 8  # words of a cache line
GATE, INSIDE, ENDED = 0, LINE, 2 * LINE
(JOB, PC, FIRST, ROWS, WORKERS) = range(3 * LINE, 3 * LINE + 5)
(LOCK, UNLOCK, WAIT, WAKE, YIELD) = range(4 * LINE, 4 * LINE + 5)
MUTEX = 5 * LINE  # as large as on any system, and so are conditions
ASLEEP = MUTEX + 2 * LINE
NEXT = ASLEEP + threads.MOST_WORKERS
CONDITIONS = NEXT + threads.MOST_WORKERS
WORDS = CONDITIONS + LINE * threads.MOST_WORKERS
"""Words of a pool. The gate is 0 or the number of the job that is open, INSIDE counts
who has gone through it. PC, FIRST, ROWS and WORKERS are what the launch was given, NEXT
has the next chunk of each part, ASLEEP is not 0 for a thread that sleeps."""

_NEEDED = (
    "pthread_mutex_lock", "pthread_mutex_unlock", "pthread_cond_wait",
    "pthread_cond_signal", "sched_yield", "pthread_mutex_init", "pthread_cond_init",
    "pthread_create", "pthread_join",
)  # fmt: skip

_call_1, _call_2 = caller(1), caller(2)


@njit(nogil=True)
def chunk(pc: int, number: int, context: int) -> None:
    """Run one chunk of the kernel that the row at `pc` names."""
    size = load_int64(pc, 5)
    begin = number * size
    end = min(begin + size, load_int64(pc, 4))
    call_kernel(
        load_int64(pc, 1), load_int64(pc, 2), load_int64(pc, 3), begin, end, context
    )


@njit(nogil=True)
def take(
    pc: int, first: int, rows: int, workers: int, worker: int, next_chunks: int
) -> None:
    """Run chunks until none is left: first of the worker's own part, then others'.

    The row at `pc` counts them, and each is one of all `rows` from `first` on.
    """
    chunks, contexts = load_int64(pc, 6), load_int64(pc, 7)
    context = contexts + worker * load_int64(pc, 8)
    for ahead in range(workers):
        part = (worker + ahead) % workers
        place, last = next_chunks + 8 * part, (part + 1) * chunks // workers
        number = atomic_add(place, 1)
        while number < last:
            for row in range(rows):
                chunk(first + row * ROW_BYTES, number, context)
            number = atomic_add(place, 1)


@njit(nogil=True)
def share_out(pc: int, workers: int, next_chunks: int) -> None:
    """Write the first chunk of each part."""
    chunks = load_int64(pc, 6)
    for worker in range(workers):
        store_int64(next_chunks, worker, worker * chunks // workers)


@njit(nogil=True)
def _open(pool: int, worker: int, last: int) -> int:
    """Return the number of the open job for a worker after job `last`, or 0."""
    job = atomic_load(pool + 8 * GATE)
    if job == last or worker >= load_int64(pool, WORKERS):
        return 0
    return job


@njit(nogil=True)
def _sleep(pool: int, worker: int, last: int) -> None:
    """Wait until a job is open, or the end."""
    asleep, mutex = pool + 8 * (ASLEEP + worker), pool + 8 * MUTEX
    _call_1(load_int64(pool, LOCK), (mutex,))
    atomic_exchange(asleep, 1)
    while _open(pool, worker, last) == 0 and atomic_load(pool + 8 * ENDED) == 0:
        condition = pool + 8 * (CONDITIONS + LINE * worker)
        _call_2(load_int64(pool, WAIT), (condition, mutex))
    atomic_exchange(asleep, 0)
    _call_1(load_int64(pool, UNLOCK), (mutex,))


def _work(place: int) -> None:
    """Run a worker thread; `place` has the address of its pool and its number."""
    pool, worker = load_int64(place, 0), load_int64(place, 1)
    last, looks = 0, 0
    while atomic_load(pool + 8 * ENDED) == 0:
        job = _open(pool, worker, last)
        if job != 0:
            atomic_add(pool + 8 * INSIDE, 1)
            if atomic_load(pool + 8 * GATE) == job:
                take(
                    load_int64(pool, PC), load_int64(pool, FIRST),
                    load_int64(pool, ROWS), load_int64(pool, WORKERS), worker,
                    pool + 8 * NEXT,
                )  # fmt: skip
            atomic_add(pool + 8 * INSIDE, -1)
            last, looks = job, 0
        elif looks < LOOKS:
            pause()
            looks += 1
        else:
            _sleep(pool, worker, last)
            looks = 0


def _launch(pc: int, first: int, rows: int, workers: int, mask: int) -> None:
    """Run the chunks that the row at `pc` counts, by the caller and free workers."""
    pool = load_int64(load_int64(pc, 11), threads.POOL)
    share_out(pc, workers, pool + 8 * NEXT)
    job = load_int64(pool, JOB) + 1
    store_int64(pool, JOB, job)
    store_int64(pool, PC, pc)
    store_int64(pool, FIRST, first)
    store_int64(pool, ROWS, rows)
    store_int64(pool, WORKERS, workers)
    atomic_exchange(pool + 8 * GATE, job)
    for worker in range(1, workers):
        if atomic_load(pool + 8 * (ASLEEP + worker)) != 0:
            _wake(pool, worker)
    take(pc, first, rows, workers, 0, pool + 8 * NEXT)
    atomic_exchange(pool + 8 * GATE, 0)
    looks = 0
    while atomic_load(pool + 8 * INSIDE) != 0:
        if looks < PATIENCE:
            pause()
            looks += 1
        else:
            call_get(load_int64(pool, YIELD))


@njit(nogil=True)
def _wake(pool: int, worker: int) -> None:
    mutex = pool + 8 * MUTEX
    condition = pool + 8 * (CONDITIONS + LINE * worker)
    _call_1(load_int64(pool, LOCK), (mutex,))
    _call_1(load_int64(pool, WAKE), (condition,))
    _call_1(load_int64(pool, UNLOCK), (mutex,))


@cache
def _library() -> ctypes.CDLL | None:
    """Return the C library, if it has what a pool needs."""
    if os.name != "posix":
        return None
    library = ctypes.CDLL(None)
    return library if all(hasattr(library, name) for name in _NEEDED) else None


def available() -> bool:
    """Whether the system has POSIX threads."""
    return _library() is not None


def addresses() -> tuple[int, int]:
    """Return the addresses of the parallel launch and of a worker thread's function."""
    files = (__file__, pointers.__file__, threads.__file__)
    stamp = stamp_of(*files)
    return (
        compiled_once(_launch, kernel_key(f"launch {stamp}")),
        compiled_once(_work, kernel_key(f"work {stamp}")),
    )


class ThreadPool:
    """Threads 1 to `count` that wait for launches, until Python ends."""

    def __init__(self, count: int, work: int) -> None:
        library = _library()
        if library is None:
            raise OSError("a pool requires POSIX's threads")
        self._library = library
        raw = np.zeros(WORDS + LINE, np.int64)
        self._words = raw[-raw.ctypes.data % (8 * LINE) // 8 :][:WORDS]
        self.address = int(self._words.ctypes.data)  # what launches find in CELLS
        for word, name in zip((LOCK, UNLOCK, WAIT, WAKE, YIELD), _NEEDED, strict=False):
            function = ctypes.cast(getattr(library, name), ctypes.c_void_p)
            self._words[word] = function.value or 0
        library.pthread_mutex_init(self._at(MUTEX), None)
        for number in range(threads.MOST_WORKERS):
            library.pthread_cond_init(self._condition(number), None)
        self._places = np.zeros((count + 1, 2), np.int64)
        self._places[:, 0] = self.address
        self._places[:, 1] = np.arange(count + 1)
        self._handles = [*self._started(count, work)]
        _pools.append(self)

    def _at(self, word: int) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.address + 8 * word)

    def _condition(self, number: int) -> ctypes.c_void_p:
        return self._at(CONDITIONS + LINE * number)

    def _started(self, count: int, work: int) -> Iterator[ctypes.c_size_t]:
        """Start threads; return their handles, fewer if the system refuses more."""
        for number in range(1, count + 1):
            handle, place = ctypes.c_size_t(), self._places[number].ctypes.data
            given = ctypes.c_void_p(work), ctypes.c_void_p(place)
            if self._library.pthread_create(ctypes.byref(handle), None, *given):
                return
            yield handle

    def end(self) -> None:
        """End all threads, and wait for them."""
        self._words[ENDED] = 1
        self._library.pthread_mutex_lock(self._at(MUTEX))
        for number in range(1, len(self._handles) + 1):
            self._library.pthread_cond_signal(self._condition(number))
        self._library.pthread_mutex_unlock(self._at(MUTEX))
        for handle in self._handles:
            self._library.pthread_join(handle, None)
        self._handles.clear()


_pools: list[ThreadPool] = []


def _end() -> None:
    # Before Python takes memory and code away from under the threads.
    for pool in _pools:
        pool.end()


def _after_fork() -> None:
    # The child has no such threads. Locks they may hold stay with the parent.
    _pools.clear()


atexit.register(_end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
