"""Threads of compiled code: their layer and number.

The layer is chosen when the first program runs, not at import: threads of our own
(thread_pool.py), but a layer of Numba's that the user chose, or that already runs, is
kept. Where there are no POSIX threads it is OpenMP if libgomp can be loaded, else TBB
from PyPI (loaded by its full path, as Numba would not find it), else Numba's work
queue.

Programs read `CELLS` before each parallel launch. Our own threads and the work queue
serve one launch at a time, so there launches take a lock or else run serially; the work
queue's price per launch (about 90 us) asks for more work. After a fork everything runs
serially, because the threads are not in the child (under OpenMP a launch would end it).

Weakness: under the work queue a parallel function of the user's own that runs at the
same moment as ours, in another thread, still ends the process, as Numba documents.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import os
import threading
from typing import Any

import llvmlite.binding
import numba
import numpy as np

from staticgrad.compiler.codegen.llvm.pointers import STACK_WORDS
from staticgrad.ir.source import at, here

(WORKERS, MASK, EXCLUSIVE, LOCK, LEAST_WORK, GET_MASK, SET_MASK, LAUNCH,
 POOL) = range(9)  # fmt: skip
CELLS = np.zeros(9, np.int64)
"""What programs read: how many workers a launch may use, how many of Numba's threads
it wakes, whether launches exclude each other, the lock, the least work in additions,
the addresses of Numba's functions that get and set how many threads it wakes, of the
parallel launch, and of its pool (thread_pool.py)."""

OWN = "pool"
"""The name of the layer that is ours."""

MOST_WORKERS = STACK_WORDS  # a launch has one word for each (vm.py)
LEAST_ADDITIONS = 90_000  # 14 us: a launch costs 0.3 us, under omp and tbb 1-2 us
LEAST_ADDITIONS_WORK_QUEUE = 4_000_000  # 600 us: a launch costs about 90 us

_starting = threading.RLock()
_chosen: list[Any] = []  # TBB's library, kept loaded, and the name of the layer
_forked = False


def set_num_threads(count: int) -> None:
    """Set the number of threads of compiled graphs; results keep the same bits.

    There are as many as Numba is allowed (NUMBA_NUM_THREADS, the number of cores); more
    share those. In a forked child compiled graphs stay serial.

    >>> import staticgrad as sg
    >>> sg.set_num_threads(2)
    >>> sg.get_num_threads()
    2
    """
    if isinstance(count, bool) or not isinstance(count, int | np.integer):
        raise TypeError(
            f"set_num_threads requires an int, got {count!r}; pass a number of threads"
            f"{at(here())}"
        )
    if count < 1:
        raise ValueError(
            f"set_num_threads requires at least 1, got {count}; pass 1 for serial runs"
            f"{at(here())}"
        )
    if not _forked:
        _use(int(count))


def get_num_threads() -> int:
    """Return the number of threads that compiled graphs use.

    >>> import staticgrad as sg
    >>> sg.get_num_threads() >= 1
    True
    """
    return int(CELLS[WORKERS])


def most_workers() -> int:
    """Return the largest number of workers of any launch."""
    return max(int(CELLS[WORKERS]), min(_numba_threads(), MOST_WORKERS))


def _numba_threads() -> int:
    return int(numba.config.NUMBA_NUM_THREADS)


def address() -> int:
    """Return the address of `CELLS`."""
    return int(CELLS.ctypes.data)


def others() -> int:
    """Return the number of threads beside the calling one."""
    return min(_numba_threads(), MOST_WORKERS) - 1


def layer() -> str:
    """Return the name of the running layer, or "" before the first program."""
    if OWN in _chosen:
        return OWN
    try:
        return str(numba.threading_layer())
    except ValueError:
        return ""


def start(own: bool) -> None:
    """Choose a layer, once, and start its threads, if they are Numba's.

    With `own` it may be `OWN`.
    """
    with _starting:
        if _chosen or _forked:
            return
        if own and not layer() and numba.config.THREADING_LAYER == "default":
            _chosen.append(OWN)
            CELLS[EXCLUSIVE] = 1
            return
        if not layer():
            _launch(_choice())
        name = layer()
        _chosen.append(name)
        # Called by address: what Numba compiles for numba.set_num_threads isn't cached.
        CELLS[GET_MASK] = llvmlite.binding.address_of_symbol("get_num_threads") or 0
        CELLS[SET_MASK] = llvmlite.binding.address_of_symbol("set_num_threads") or 0
        if name == "workqueue":
            CELLS[EXCLUSIVE] = 1
            CELLS[LEAST_WORK] = LEAST_ADDITIONS_WORK_QUEUE


def _use(count: int) -> None:
    CELLS[WORKERS] = min(count, MOST_WORKERS)
    CELLS[MASK] = min(count, _numba_threads())


def _launch(name: str) -> None:
    # Numba reads the configuration when its threads start, and only then.
    config: Any = numba.config
    before = config.THREADING_LAYER
    config.THREADING_LAYER = name
    try:
        numba.get_num_threads()
    finally:
        config.THREADING_LAYER = before


def _choice() -> str:
    wanted = str(numba.config.THREADING_LAYER)
    if wanted != "default":
        return wanted
    if _imports("omppool"):
        return "omp"
    if _load_tbb() and _imports("tbbpool"):
        return "tbb"
    return "workqueue"


def _imports(pool: str) -> bool:
    # Numba's layers are extension modules; one whose library is missing does not load.
    try:
        importlib.import_module(f"numba.np.ufunc.{pool}")
    except ImportError:
        return False
    return True


def _load_tbb() -> bool:
    try:
        files = importlib.metadata.files("tbb") or ()
    except importlib.metadata.PackageNotFoundError:
        return False
    for file in files:
        if file.name == "libtbb.so.12" and _load_globally(str(file.locate())):
            return True
    return False


def _load_globally(path: str) -> bool:
    try:
        _chosen_library = ctypes.CDLL(os.path.realpath(path), ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return _chosen_library._handle != 0


def _after_fork() -> None:
    global _forked, _starting
    _starting = threading.RLock()
    CELLS[LOCK] = 0
    if layer():
        _forked = True
        CELLS[WORKERS] = CELLS[MASK] = 1


CELLS[LEAST_WORK] = LEAST_ADDITIONS
_use(_numba_threads())
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
