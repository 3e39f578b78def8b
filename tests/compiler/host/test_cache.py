"""Does the kernel cache find what it has, and survive everything else?"""

import ctypes
import errno
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from staticgrad.compiler.codegen.native_compile import compiled
from staticgrad.compiler.host import cache as caching
from staticgrad.compiler.host import numba_internals as internals
from staticgrad.compiler.host.cache import Cache, cache_folder, kernel_key, trim


def source(number):
    """A kernel that stores `number`."""
    return (
        "def kernel(operands, sizes, begin, end, context):\n"
        '    p0 = operand(operands, 0, "int64", 0, 1)\n'
        f"    store(p0, 0, {number})\n"
    )


def result(address):
    cell = ctypes.c_int64(-1)
    table = ctypes.c_int64(ctypes.addressof(cell))
    ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 5)(address)(
        ctypes.addressof(table), 0, 0, 0, 0
    )
    return cell.value


def get(cache, number):
    text = source(number)
    key = kernel_key(text)
    return cache.get(key, lambda: compiled(text, key))


def entry(cache, number):
    return cache.path(kernel_key(source(number)))


PROGRAM = """
import sys
from pathlib import Path
from staticgrad.compiler.host.cache import Cache, kernel_key
from staticgrad.compiler.codegen.native_compile import compiled
cache = Cache(Path(sys.argv[1]))
for text in sys.argv[2:]:
    key = kernel_key(text)
    found = cache.get(key, lambda: compiled(text, key))
    assert found.address
    print(found.reason)
"""


def start(folder, *texts):
    command = [sys.executable, "-c", PROGRAM, str(folder), *texts]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def finish(process):
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return output.splitlines()


def test_miss_then_memory_then_disk(tmp_path):
    cache = Cache(tmp_path / "made" / "by need")
    first = get(cache, 11)
    assert (first.hit, first.reason) == (False, "not on disk")
    assert result(first.address) == 11
    again = get(cache, 11)
    assert (again.hit, again.reason) == (True, "in memory")
    assert again.address == first.address
    other = get(Cache(cache.folder), 11)
    assert (other.hit, other.reason) == (True, "on disk")
    assert result(other.address) == 11


def test_another_process_finds_it_and_its_kernels_do_not_mix(tmp_path):
    # each of the two processes numbers its symbols from one
    assert finish(start(tmp_path, source(21))) == ["not on disk"]
    assert finish(start(tmp_path, source(22))) == ["not on disk"]
    cache = Cache(tmp_path)
    found = [get(cache, number) for number in (21, 22)]
    assert [f.reason for f in found] == ["on disk", "on disk"]
    assert [result(f.address) for f in found] == [21, 22]


def test_concurrent_writers(tmp_path):
    processes = [start(tmp_path, source(31), source(32)) for _ in range(3)]
    for process in processes:
        assert len(finish(process)) == 2
    assert sorted(p.suffix for p in tmp_path.iterdir()) == [".kernel", ".kernel"]
    assert get(Cache(tmp_path), 31).hit


def test_every_corrupt_byte_and_every_truncation_is_noticed(tmp_path):
    cache = Cache(tmp_path)
    get(cache, 41)
    path, key = entry(cache, 41), kernel_key(source(41))
    whole = path.read_bytes()
    places = [0, 5, 30, 100, 140, len(whole) // 2, len(whole) - 1]
    for place in places:
        broken = bytearray(whole)
        broken[place] ^= 0x40
        path.write_bytes(broken)
        assert caching.read_entry(path, key) == (None, "corrupt on disk")
    for length in (0, 1, 19, 84, 85, 200, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert caching.read_entry(path, key) == (None, "corrupt on disk")
    path.write_bytes(whole + b"x")
    assert caching.read_entry(path, key) == (None, "corrupt on disk")


def test_a_corrupt_entry_is_compiled_anew_and_replaced(tmp_path):
    cache = Cache(tmp_path)
    get(cache, 42)
    entry(cache, 42).write_bytes(b"nonsense")
    found = get(Cache(tmp_path), 42)
    assert (found.hit, found.reason) == (False, "corrupt on disk")
    assert result(found.address) == 42
    assert get(Cache(tmp_path), 42).reason == "on disk"


def test_an_entry_of_another_key_is_not_taken(tmp_path):
    cache = Cache(tmp_path)
    get(cache, 43)
    entry(cache, 43).rename(entry(cache, 44))
    found = get(Cache(tmp_path), 44)
    assert found.reason == "corrupt on disk"
    assert result(found.address) == 44


def test_code_that_cannot_be_linked_is_compiled(tmp_path, monkeypatch):
    get(Cache(tmp_path), 45)

    def refuse(stored):
        raise RuntimeError("another Numba")

    monkeypatch.setattr(internals, "load_object_code", refuse)
    found = get(Cache(tmp_path), 45)
    assert (found.hit, found.reason) == (False, "cannot be linked")
    assert result(found.address) == 45


def test_numba_without_object_code_works_without_a_cache(tmp_path, monkeypatch):
    def refuse(callback):
        raise AttributeError("another Numba")

    monkeypatch.setattr(internals, "object_code", refuse)
    found = get(Cache(tmp_path), 46)
    assert found.reason == "not on disk, and cannot be kept on disk"
    assert result(found.address) == 46
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    found = get(Cache(tmp_path / "file" / "cache"), 51)
    assert "cannot be kept on disk" in found.reason
    assert result(found.address) == 51


@pytest.mark.parametrize("broken", ["fdopen", "replace"])
def test_a_full_or_read_only_disk(tmp_path, monkeypatch, broken):
    def refuse(*_args):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, broken, refuse)
        found = get(Cache(tmp_path), 52)
    assert found.reason == "not on disk, and cannot be kept on disk"
    assert result(found.address) == 52
    assert not list(tmp_path.iterdir())


def test_an_entry_that_cannot_be_read(tmp_path):
    cache = Cache(tmp_path)
    entry(cache, 53).mkdir(parents=True)
    found = get(cache, 53)
    assert "unreadable" in found.reason
    assert result(found.address) == 53


def test_the_least_recently_used_entries_go(tmp_path):
    now = time.time()
    for age in range(5):
        path = tmp_path / f"{age}.kernel"
        path.write_bytes(b"x" * 100)
        os.utime(path, (now - age, now - age))
    stale, fresh, foreign = (tmp_path / n for n in ("a.part", "b.part", "readme.txt"))
    for path in (stale, fresh, foreign):
        path.write_bytes(b"x" * 1000)
    os.utime(stale, (now - 10_000, now - 10_000))
    trim(tmp_path, 250)
    left = sorted(p.name for p in tmp_path.iterdir())
    assert left == ["0.kernel", "1.kernel", "b.part", "readme.txt"]


def test_a_hit_counts_as_use(tmp_path):
    cache = Cache(tmp_path)
    get(cache, 61)
    os.utime(entry(cache, 61), (1000, 1000))
    get(Cache(tmp_path), 61)
    assert entry(cache, 61).stat().st_mtime > 1000


def test_a_cache_keeps_within_its_bound(tmp_path, monkeypatch):
    monkeypatch.setattr(caching, "_WRITES_PER_SCAN", 1)
    cache = Cache(tmp_path, limit_bytes=1)
    found = get(cache, 62)
    assert result(found.address) == 62
    assert not list(tmp_path.iterdir())


def test_the_key_depends_on_source_processor_and_settings(monkeypatch):
    keys = [kernel_key("a"), kernel_key("b")]
    other = internals.CompileTarget("triple", "cpu", "+feature")
    for name, value in (
        ("target", lambda: other),
        ("options", lambda: ("OPT=0",)),
    ):
        caching.environment.cache_clear()
        with monkeypatch.context() as patch:
            patch.setattr(internals, name, value)
            keys.append(kernel_key("a"))
    caching.environment.cache_clear()
    assert len(set(keys)) == len(keys)
    assert kernel_key("a") == keys[0]


def test_the_key_depends_on_the_code_generator_and_versions():
    assert len(caching.generator_hash()) == 64
    assert caching.generator_hash() in caching.environment()
    assert any(text.startswith("numba=0") for text in caching.environment())


def test_the_folder_is_the_users_or_the_one_that_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("STATICGRAD_CACHE_DIR", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("STATICGRAD_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    assert cache_folder() == tmp_path / "staticgrad"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "staticgrad"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache_folder() == tmp_path / "Library" / "Caches" / "staticgrad"
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path))
    assert cache_folder() == tmp_path / "staticgrad" / "cache"


def test_threads_that_want_one_kernel_compile_it_once(tmp_path):
    cache, compilations, found = Cache(tmp_path), [], []
    text = source(71)
    key = kernel_key(text)

    def compile_it():
        compilations.append(1)
        return compiled(text, key)

    def want():
        found.append(cache.get(key, compile_it))

    threads = [threading.Thread(target=want) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(compilations) == 1
    assert len({f.address for f in found}) == 1


def test_a_kernel_runs_while_another_is_compiled(tmp_path):
    cache = Cache(tmp_path)
    address = get(cache, 72).address
    thread = threading.Thread(target=lambda: [get(cache, n) for n in range(73, 78)])
    thread.start()
    results = []
    while thread.is_alive():
        results.append(result(address))
    thread.join()
    assert results
    assert set(results) == {72}


FORK = """
import os, sys, threading
from staticgrad.compiler.codegen.native_compile import compiled
from staticgrad.compiler.host.cache import default_cache, kernel_key
def get(text):
    key = kernel_key(text)
    return default_cache().get(key, lambda: compiled(text, key))
first, second, third, last = sys.argv[1:]
get(first)
started = threading.Event()
def work():
    started.set()
    get(second), get(third)
thread = threading.Thread(target=work)
thread.start(); started.wait()
child = os.fork()
if child == 0:
    assert get(first).reason == "in memory"
    assert get(last).address
    os._exit(0)
thread.join()
assert os.waitpid(child, 0)[1] == 0
"""


def test_a_child_forked_while_a_thread_compiles_can_compile(tmp_path):
    if not hasattr(os, "fork"):
        return
    texts = [source(number) for number in range(81, 85)]
    command = [sys.executable, "-W", "ignore", "-c", FORK, *texts]
    environment = os.environ | {"STATICGRAD_CACHE_DIR": str(tmp_path)}
    subprocess.run(command, check=True, timeout=120, env=environment)
    # four kernels, and what the processor can do
    assert len(list(Path(tmp_path).glob("*.kernel"))) == 5
