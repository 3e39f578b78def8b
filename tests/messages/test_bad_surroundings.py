"""Threads, forks, missing libraries and broken disks, seen from the public interface.

tests/compiler/runtime/test_threads.py and test_cache.py ask the same of the parts; here
whole programs run, in processes of their own where the process itself is at stake. What
each prints is compared with what the same program prints where nothing is wrong.
"""

import os
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import staticgrad as sg

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import hashlib, os, sys, warnings
import numpy as np
import staticgrad as sg
from staticgrad.compiler.runtime import threads

warnings.simplefilter("ignore", DeprecationWarning)  # fork beside threads
RNG = np.random.default_rng(0)
X = RNG.normal(size=(60_000, 16)).astype(np.float32)
Y = RNG.integers(0, 4, len(X))

def build():
    with sg.Graph(seed=0):
        x = sg.input("x", ("batch", 16))
        y = sg.input("y", ("batch",), dtype="int64")
        model = sg.nn.Sequential(sg.nn.Linear(16, 8), sg.nn.Tanh(), sg.nn.Linear(8, 4))
        loss = sg.nn.cross_entropy(model(x), y)
    w = model.parameters()
    f = sg.compile({"loss": loss, "grad": sg.grad(loss, w)}, inputs=[x, y])
    return f, sg.Trainer(loss, sg.optim.Adam(1e-2)), w

def bits(arrays):
    return hashlib.sha256(b"".join(np.asarray(a).tobytes() for a in arrays)).hexdigest()

def called(f):
    found = f(X, Y)
    return bits([found["loss"], *found["grad"].values()])

def fitted(trainer, w):
    options = dict(batch_size=32_000, epochs=2, progress=False)
    return bits([*trainer.fit({"x": X, "y": Y}, **options).values(),
                 *(p.value for p in w.values())])

f, trainer, w = build()
"""

PLAIN = """
print(called(f), fitted(trainer, w), threads.layer())
"""


def run(script, prelude=PROGRAM, **environment):
    """Return the words that `script` prints in a new process."""
    found = subprocess.run(
        [sys.executable, "-W", "error", "-c", prelude + textwrap.dedent(script)],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "NUMBA_NUM_THREADS": "4",
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout.split()


@pytest.fixture(scope="module")
def expected():
    """The bits of the call and of the fit."""
    return run(PLAIN)[:2]


def spoilt(folder, *names):
    """An environment in which the loader finds libraries that are none."""
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_bytes(b"")
    return {"LD_LIBRARY_PATH": str(folder)}


GOMP = ("libgomp.so.1", "libgomp.so.1.0.0")
slow = pytest.mark.slow
linux = pytest.mark.skipif(sys.platform != "linux", reason="the loader is Linux's")
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")


# ---- threading layers ----------------------------------------------------------------


WITHOUT_POSIX = PROGRAM.replace(
    "def build",
    "from staticgrad.compiler.runtime import thread_pool as pool\n"
    "pool.available = bool\ndef build",
)


@linux
def test_without_libgomp(tmp_path, expected):
    *found, layer = run(PLAIN, WITHOUT_POSIX, **spoilt(tmp_path / "lib", *GOMP))
    assert found == expected
    assert layer in ("tbb", "workqueue")


@linux
def test_without_libgomp_and_tbb(tmp_path, expected):
    prelude = WITHOUT_POSIX.replace("def build", "threads._load_tbb = bool\ndef build")
    *found, layer = run(PLAIN, prelude, **spoilt(tmp_path / "lib", *GOMP))
    assert found == expected
    assert layer == "workqueue"


MODULES = {
    "pool": "workqueue", "omp": "omppool", "tbb": "tbbpool", "workqueue": "workqueue",
}  # fmt: skip
FORKED = """
before = called(f)
child = os.fork()
if child == 0:
    g, other, v = build()
    same = (called(f), called(g), fitted(other, v))
    os._exit(0 if same == (before, before, sys.argv[1]) else 1)
code = os.waitpid(child, 0)[1]
print(code, called(f), fitted(trainer, w), threads.layer())
"""


@forks
@pytest.mark.parametrize("layer", ["pool", "omp", "tbb", "workqueue"])
def test_a_forked_child_computes_and_so_does_its_parent(layer, expected):
    prelude = PROGRAM.replace(
        "def build", f"sys.argv[1:] = ['{expected[1]}']\ndef build"
    )
    if layer == "tbb":
        prelude = prelude.replace("def build", "threads._load_tbb()\ndef build", 1)
    script = f"threads._load_tbb(); print(threads._imports('{MODULES[layer]}'))"
    available = run(script, "from staticgrad.compiler.runtime import threads\n")
    if available == ["False"]:
        pytest.skip(f"{layer} is not installed")
    chosen = "default" if layer == "pool" else layer
    code, *found, used = run(FORKED, prelude, NUMBA_THREADING_LAYER=chosen)
    assert (code, found, used) == ("0", expected, layer)


@forks
def test_a_child_forked_while_other_threads_run_and_compile(expected):
    script = """
    import threading
    stop = threading.Event()
    def compute():
        while not stop.is_set():
            called(f)
    def compile():
        n = 0
        while not stop.is_set():
            n += 1
            with sg.Graph():
                x = sg.input("x", ("n",))
            sg.compile(sg.exp(x) * float(n))([1.0])
    workers = [threading.Thread(target=work) for work in (compute, compile)]
    called(f)
    for worker in workers: worker.start()
    codes = []
    for _ in range(3):
        child = os.fork()
        if child == 0:
            g, other, v = build()
            with sg.Graph():
                x = sg.input("x", ("n",))
                new = sg.compile(sg.tanh(x) * 0.123)
            right = called(f) == called(g) and new([0.0]) == 0
            os._exit(0 if right else 1)
        codes.append(os.waitpid(child, 0)[1])
    stop.set()
    for worker in workers: worker.join()
    print(*codes, called(f))
    """
    assert run(script) == ["0", "0", "0", expected[0]]


@forks
def test_a_pool_of_forked_processes(expected):
    script = """
    import multiprocessing
    if __name__ == "__main__":
        called(f)
        def work(_):
            return called(f)
        with multiprocessing.get_context("fork").Pool(2) as pool:
            print(*pool.map(work, range(3)))
    """
    assert run(script) == [expected[0]] * 3


# ---- disks ---------------------------------------------------------------------------


@slow
def test_a_cache_folder_that_cannot_be_made(tmp_path, expected):
    (tmp_path / "file").write_text("in the way")
    folders = str(tmp_path / "file" / "cache")
    found = run(PLAIN, STATICGRAD_CACHE_DIR=folders, NUMBA_CACHE_DIR=folders)
    assert found[:2] == expected


def test_a_full_disk(tmp_path, expected):
    # Files cannot grow: each write fails as on a full disk, with another errno.
    full = """
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
    """
    pytest.importorskip("resource")
    folders = str(tmp_path / "cache")
    prelude = textwrap.dedent(full) + PROGRAM
    script = PLAIN + "print('kept' in f.explain())"
    found = run(script, prelude, STATICGRAD_CACHE_DIR=folders, NUMBA_CACHE_DIR=folders)
    assert found[:2] == expected
    assert found[-1] == "True"
    left = [p for p in Path(folders).rglob("*") if p.suffix in (".part", ".kernel")]
    assert left == []


@pytest.mark.parametrize(
    "damage",
    ["noise", *(pytest.param(d, marks=slow) for d in ("empty", "short", "folder"))],
)
def test_a_corrupt_cache(tmp_path, expected, damage):
    folder = tmp_path / "cache"
    first = run(PLAIN, STATICGRAD_CACHE_DIR=str(folder))
    files = sorted(folder.glob("*.kernel"))
    assert first[:2] == expected
    assert len(files) > 3
    for path in files:
        content = path.read_bytes()
        path.unlink()
        if damage == "folder":
            path.mkdir()
        else:
            noise = bytes(255 - byte for byte in content)
            changed = {"empty": b"", "short": content[:-9], "noise": noise}
            path.write_bytes(changed[damage])
    assert run(PLAIN, STATICGRAD_CACHE_DIR=str(folder))[:2] == expected


@slow
@linux
def test_a_corrupt_cache_of_the_virtual_machine(tmp_path, expected):
    numba = tmp_path / "numba"
    assert run(PLAIN, WITHOUT_POSIX, NUMBA_CACHE_DIR=str(numba))[:2] == expected
    files = [p for p in numba.rglob("*") if p.suffix in (".nbc", ".nbi")]
    assert files
    for path in files:
        path.write_bytes(path.read_bytes()[:100])
    assert run(PLAIN, WITHOUT_POSIX, NUMBA_CACHE_DIR=str(numba))[:2] == expected


# ---- several threads -----------------------------------------------------------------


def model():
    with sg.Graph(seed=0):
        x = sg.input("x", ("n", 32))
        w = sg.parameter(np.linspace(-1, 1, 32 * 16).reshape(32, 16), name="w")
        y = sg.tanh(x @ w.astype("float32"))
        loss = sg.mean(y * y)
    return sg.compile({"y": y, "grad": sg.grad(loss, x)})


def test_four_threads_at_once_give_the_bits_of_one():
    f = model()
    rng = np.random.default_rng(1)
    batches = [rng.normal(size=(n, 32)).astype("f4") for n in (1, 7, 900, 20_000)] * 5
    serial = [f(x) for x in batches]
    with ThreadPoolExecutor(4) as pool:
        parallel = list(pool.map(f, batches))
    for one, other in zip(serial, parallel, strict=True):
        for name, array in one.items():
            np.testing.assert_array_equal(array, other[name])


def test_calls_with_updates_are_atomic():
    """Each call sees the state of a whole number of steps, never half of one."""
    size = 300_000  # written by several threads
    with sg.Graph():
        step = sg.input("step", ())
        a = sg.state(np.zeros(size, np.float32), name="a")
        b = sg.state(np.zeros(size, np.float32), name="b")
    same = sg.all(a == b) & sg.all(a == a[0])
    f = sg.compile([same, a[0]], updates=[(a, a + step), (b, b + step)])
    seen = []

    def work():
        for _ in range(25):
            right, count = f(1.0)
            seen.append((bool(right), float(count)))

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(seen) == [(True, float(n)) for n in range(100)]
    assert (a.value == 100).all()
    assert (b.value == 100).all()


def test_one_bound_executable_in_four_threads():
    with sg.Graph():
        n = sg.state(np.zeros((), np.int64), name="n")
    g = sg.compile([n], updates=[(n, n + 1)]).bind()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: g(), range(400)))
        list(pool.map(lambda _: g.repeat(50), range(8)))
    assert n.value == 800


def test_an_error_in_one_thread_stays_there():
    with sg.Graph():
        i = sg.input("i", ("n",), dtype="int64")
        f = sg.compile(sg.sum(sg.take(np.arange(5.0), i)))
    good, bad = np.full(50_000, 3), np.full(50_000, 3)
    bad[-1] = 9

    def work(number):
        if number % 3:
            return f(good) == 150_000
        with pytest.raises(sg.IndexOutOfRange, match="got 9 at position 49999"):
            f(bad)
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(200)))


def test_compiling_while_another_thread_trains():
    with sg.Graph(seed=0):
        x = sg.input("x", ("batch", 8))
        layer = sg.nn.Linear(8, 1)
        loss = sg.mean((layer(x) - 1.0) ** 2)
    start = {name: p.value for name, p in layer.parameters().items()}
    data = {"x": np.random.default_rng(2).normal(size=(64, 8)).astype(np.float32)}
    trainer = sg.Trainer(loss, sg.optim.SGD(0.01))
    options = {"epochs": 400, "batch_size": 8, "progress": False}
    alone = trainer.fit(data, **options)["loss"]
    for name, p in layer.parameters().items():
        p.value = start[name]
    again = sg.Trainer(loss, sg.optim.SGD(0.01))
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(again.fit, data, **options)
        for number in range(6):
            with sg.Graph():
                v = sg.input("v", ("n",))
            y = sg.sum(sg.sin(v) * (number + 0.25)) / (number + 1.5)
            assert sg.compile(sg.grad(y, v))(np.zeros(4)).shape == (4,)
        np.testing.assert_array_equal(running.result()["loss"], alone)
