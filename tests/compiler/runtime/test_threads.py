"""Threading layers, numbers of threads, forks: in processes of their own."""

import os
import platform
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import staticgrad as sg
from staticgrad.compiler.runtime import thread_pool, threads

PRELUDE = """
import os, sys, threading
import numpy as np
from hand_made import N, frame_of, input_leaf, sums_of_exponentials
from staticgrad.compiler.runtime import threads

def bits(workers, count=400_000):
    threads.set_num_threads(workers)
    frame = frame_of(sums_of_exponentials(), [input_leaf("x", (N,))], n=count)
    frame.inputs["x"][:] = np.random.default_rng(0).normal(size=count)
    assert frame.run() == 0
    return b"".join(out.tobytes() for out in frame.outputs)
"""

ROOT = Path(__file__).resolve().parents[3]


def run(script, prelude=PRELUDE, **environment):
    """Return the output of `script` in a new process."""
    found = subprocess.run(
        [sys.executable, "-c", prelude + textwrap.dedent(script)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests" / "support")]),
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout.split()


@pytest.fixture
def threads_restored():
    before = sg.get_num_threads()
    yield
    sg.set_num_threads(before)


def test_set_and_get(threads_restored):
    for count in (1, 2, 4):
        sg.set_num_threads(count)
        assert sg.get_num_threads() == count


@pytest.mark.parametrize("count", [0, -1])
def test_fewer_than_one_thread_is_refused(count):
    with pytest.raises(ValueError, match="set_num_threads requires at least 1"):
        sg.set_num_threads(count)


@pytest.mark.parametrize("count", [1.0, "2", None, True])
def test_a_number_of_threads_is_an_int(count):
    with pytest.raises(TypeError, match="set_num_threads requires an int"):
        sg.set_num_threads(count)


FOUR = """
one = bits(1)
print(all(bits(workers) == one for workers in (2, 3, 4, 64)), threads.layer())
"""
WITHOUT_POSIX = f"""
from staticgrad.compiler.runtime import thread_pool as pool
pool.available = lambda: False
{PRELUDE}
"""
posix = pytest.mark.skipif(not thread_pool.available(), reason="threads are POSIX's")


def without_libgomp(tmp_path):
    """An environment in which the loader finds a libgomp that is none."""
    for name in ("libgomp.so.1", "libgomp.so.1.0.0"):
        (tmp_path / name).write_bytes(b"")
    return {"LD_LIBRARY_PATH": str(tmp_path)}


def test_bits_are_equal_for_any_number_of_threads():
    same, layer = run(FOUR, NUMBA_NUM_THREADS="4")
    assert same == "True"
    assert layer == threads.OWN if thread_pool.available() else threads._choice()


def test_without_posix_threads_a_layer_of_numba_is_used():
    same, layer = run(FOUR, WITHOUT_POSIX, NUMBA_NUM_THREADS="4")
    assert same == "True"
    assert layer == threads._choice()


@posix
def test_a_layer_that_runs_already_is_kept():
    script = """
    import numba
    before = numba.get_num_threads()
    print(threads.layer() == threads._choice(), bits(4) == bits(1), threads.layer())
    """
    *same, layer = run(script, NUMBA_NUM_THREADS="4")
    assert same == ["True", "True"]
    assert layer == threads._choice()


@posix
def test_threads_that_sleep_are_woken():
    script = """
    import time
    one = bits(1)
    for pause in (0, 0.001, 0.05):
        for _ in range(10):
            assert bits(4) == one
            time.sleep(pause)
    print(len(os.listdir("/proc/self/task")) if os.path.exists("/proc") else 4)
    """
    assert int(run(script, NUMBA_NUM_THREADS="4")[0]) >= 4


@posix
def test_threads_that_do_not_come_are_not_waited_for():
    script = """
    from staticgrad.compiler.runtime import thread_pool as pool
    one = bits(4)
    pool._end()
    print(bits(4) == one)
    """
    assert run(script, NUMBA_NUM_THREADS="4") == ["True"]


@posix
def test_each_chunk_is_taken_once():
    """By a launch that counts, with kernels too short for threads to come in time."""
    script = """
    import ctypes, random
    from staticgrad.compiler.runtime import thread_pool as pool, vm
    bits(4)
    counts = np.zeros(64, np.int64)
    def count(operands, sizes, begin, end, context):
        for chunk in range(begin, end):
            atomic_add(operands + 8 * chunk, 1)
    from staticgrad.compiler.codegen.llvm.pointers import atomic_add
    from staticgrad.compiler.codegen.native_compile import compiled_once
    address = compiled_once(count, "c" * 64)
    row = np.zeros(16, np.int64)
    launch = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 5)(
        int(threads.CELLS[threads.LAUNCH])
    )
    random.seed(0)
    for turn in range(30_000):
        chunks, workers = random.randint(1, 64), random.randint(1, 4)
        row[:12] = (0, address, counts.ctypes.data, 0, chunks, 1, chunks, 0, 0, 4, 0,
                    threads.address())
        counts[:] = 0
        launch(row.ctypes.data, row.ctypes.data, 1, workers, 4)
        assert counts[:chunks].tolist() == [1] * chunks and not counts[chunks:].any()
    print(turn)
    """
    assert run(script, NUMBA_NUM_THREADS="4") == ["29999"]


@pytest.mark.skipif(sys.platform != "linux", reason="the loader's path is Linux's")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="tbb is made for x86-64")
def test_without_libgomp_tbb_is_found(tmp_path):
    environment = without_libgomp(tmp_path)
    found = run(FOUR, WITHOUT_POSIX, NUMBA_NUM_THREADS="4", **environment)
    assert found == ["True", "tbb"]


@pytest.mark.skipif(sys.platform != "linux", reason="the loader's path is Linux's")
def test_without_libgomp_and_tbb_the_work_queue_is_used_by_one_at_a_time(tmp_path):
    script = """
    threads._load_tbb = lambda: False
    one = bits(1, 6_000_000)
    results = []
    def work():
        results.append(all(bits(4, 6_000_000) == one for _ in range(3)))
    started = [threading.Thread(target=work) for _ in range(3)]
    for thread in started: thread.start()
    for thread in started: thread.join()
    print(threads.layer(), results, int(threads.CELLS[threads.LOCK]))
    """
    environment = without_libgomp(tmp_path)
    found = run(script, WITHOUT_POSIX, NUMBA_NUM_THREADS="4", **environment)
    assert " ".join(found) == "workqueue [True, True, True] 0"


def test_a_layer_that_the_user_chose_is_kept():
    found = run(FOUR, NUMBA_THREADING_LAYER="workqueue", NUMBA_NUM_THREADS="2")
    assert found == ["True", "workqueue"]


@pytest.mark.parametrize("prelude", [PRELUDE, WITHOUT_POSIX])
def test_the_users_number_of_numba_threads_is_kept(prelude):
    script = """
    import numba
    bits(2)
    numba.set_num_threads(3)
    bits(2)
    print(numba.get_num_threads(), numba.config.THREADING_LAYER)
    """
    assert run(script, prelude, NUMBA_NUM_THREADS="4") == ["3", "default"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.parametrize("layer", ["default", "workqueue"])
def test_a_forked_child_runs_serially(layer):
    script = """
    import warnings
    warnings.simplefilter("ignore")
    one = bits(4)
    child = os.fork()
    if child == 0:
        same = bits(4) == one
        serial = threads.get_num_threads() == 1
        os._exit(0 if same and serial else 1)
    print(os.waitpid(child, 0)[1], bits(4) == one, threads.get_num_threads())
    """
    found = run(script, NUMBA_NUM_THREADS="4", NUMBA_THREADING_LAYER=layer)
    assert found == ["0", "True", "4"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_child_forked_before_the_first_run_has_threads():
    script = """
    child = os.fork()
    if child == 0:
        same = bits(4) == bits(1)
        os._exit(0 if same and threads.layer() else 1)
    print(os.waitpid(child, 0)[1])
    """
    assert run(script, NUMBA_NUM_THREADS="4") == ["0"]


def test_two_threads_may_launch_at_once():
    script = """
    one = bits(1)
    results = []
    def work():
        results.append(all(bits(4) == one for _ in range(100)))
    started = [threading.Thread(target=work) for _ in range(4)]
    for thread in started: thread.start()
    for thread in started: thread.join()
    print(all(results), len(results))
    """
    assert run(script, NUMBA_NUM_THREADS="4") == ["True", "4"]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted")
def test_importing_starts_no_threads():
    # NumPy's and Numba's own imports come first; only ours are counted.
    script = """
    import os, numpy, numba
    def count(): return len(os.listdir("/proc/self/task"))
    before = count()
    import staticgrad
    imported = count() - before
    from staticgrad.compiler.gemm import blas
    blas.library()
    print(imported, count() - before)
    """
    assert run(script, prelude="") == ["0", "0"]
