"""The check of the cuda target on a GPU: what gpu_check.py runs.

It compiles and runs every sample of every op, six training runs and a graph of each
feature, launched and replayed, against the reference target; times the goals of the
README beside torch where it is installed; and writes one JSON after each part. Parts
past the budget are left out and say so.
``--emulate`` runs the checks, not the timings, in the emulator of the tests.
"""

import argparse
import importlib
import json
import sys
import time
import traceback
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context
from pathlib import Path

import numpy as np

import staticgrad as sg
from benchmarks.gpu_features import GRAPHS, PARTS
from benchmarks.gpu_models import MODELS
from staticgrad.compiler.cuda.cuda_compile import compile_kernel
from staticgrad.compiler.cuda.device import using
from staticgrad.compiler.cuda.driver import open_device
from staticgrad.ir.graph import apply_multi
from staticgrad.ir.op import OPS, Gather, Scatter
from staticgrad.ops.movement.checked_index import checked
from staticgrad.train import cuda_loop
from staticgrad.train.data import dataset
from staticgrad.train.run import Run, evaluation
from staticgrad.train.training_loop import TrainingLoop, validation

BUDGET_SECONDS = 330.0
FEATURE_ERROR = 1e-4  # of float32, relative to the larger of the value and 1
LEAST_ULP = 16.0  # libdevice's functions are less exact than ours, NumPy's not exact
PACKAGES = "numpy numba numba-cuda llvmlite nvidia-nvjitlink nvidia-cublas torch"


class Report:
    """Results so far, written after every part."""

    def __init__(self, path, budget):
        self.path = path
        self.start = time.perf_counter()
        self.budget = budget
        self.parts = {}

    @property
    def seconds(self):
        return time.perf_counter() - self.start

    @property
    def over(self):
        return self.seconds > self.budget

    def run(self, part, *arguments):
        name = part.__name__
        if self.over:
            found = "left out: over the budget"
        else:
            found = tried(part, self, *arguments)
        self.parts[name] = found
        self.parts["seconds"] = round(self.seconds, 1)
        self.path.write_text(json.dumps(self.parts, indent=1, default=str))
        print(f"[{self.seconds:6.1f} s] {name}: {str(found)[:400]}", flush=True)

    @property
    def failed(self):
        parts = [p for p in self.parts.values() if isinstance(p, dict)]
        return any(p.get("failed") for p in parts)


def tried(part, *arguments):
    """Return the results of a part, or its failure: other parts are still of use."""
    try:
        return part(*arguments)
    except Exception:  # noqa: BLE001  as said
        return {"failed": traceback.format_exc()[-2000:]}


# ---- checks --------------------------------------------------------------------------


def surroundings(_, device):
    """Versions, and the chip."""
    versions = {}
    for name in PACKAGES.split():
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = None
    return {"device": device.name, "versions": versions}


def samples_of(op):
    """Inputs, outputs, arrays and (ulp, wanted) of all samples in one graph."""
    inputs, outputs, arrays, wanted = [], [], [], []
    for sample in op.samples():
        args = [np.asarray(arg) for arg in sample.args]
        start = len(inputs)
        leaves = [
            sg.input(f"x{start + n}", a.shape, a.dtype) for n, a in enumerate(args)
        ]
        inputs += leaves
        arrays += args
        given = list(leaves)
        if isinstance(op.code, Gather | Scatter):
            extent = leaves[0].shape[sample.attrs["axis"]]
            given[1] = checked(leaves[1], extent - sample.attrs.get("window", 1) + 1)
        outputs += apply_multi(op, *given, **sample.attrs)
        results = op.numpy(*args, **sample.attrs)
        results = results if op.outputs != 1 else (results,)
        wanted += [(sample.ulp, np.asarray(result)) for result in results]
    return inputs, outputs, arrays, wanted


def misfit(got, want, ulp):
    """Why a result is not the one wanted, or None."""
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"{got.dtype}{got.shape} for {want.dtype}{want.shape}"
    if want.dtype.kind in "iub":
        return None if np.array_equal(got, want) else "other integers"
    exact, wide = np.asarray(want, np.float64), np.asarray(got, np.float64)
    if not np.array_equal(np.isfinite(exact), np.isfinite(wide)):
        return "NaN or infinity elsewhere"
    finite = np.isfinite(exact)
    eps = {8: 2.0**-52, 4: 2.0**-23, 2: 2.0**-8}[want.dtype.itemsize]
    unit = np.maximum(np.abs(exact[finite]), 1e-37) * eps
    error = np.max(np.abs(wide[finite] - exact[finite]) / unit, initial=0.0)
    return None if error <= max(ulp, LEAST_ULP) else f"{error:.3g} units"


class Collecting:
    """A device that only remembers what it is to load."""

    name, block, most_blocks = "collecting", 256, 1

    def __init__(self):
        self.sources = {}
        self.next = 1 << 40

    def allocate(self, size):
        self.next += size + 256
        return self.next

    def free(self, address):
        pass

    def write(self, address, array):
        pass

    def load(self, source):
        self.sources[source.canonical, source.kinds] = source
        return source


def compiled_ahead(report, device):
    """All kernels of all ops on the disk, compiled by many processes."""
    collecting, absent = Collecting(), []
    for op in OPS.values():
        inputs, outputs, *_ = samples_of(op)
        if not outputs:
            continue
        try:
            with using(collecting):
                sg.compile(outputs, inputs=inputs, target="cuda")
        except sg.GraphError:
            absent.append(op.name)
    sources = list(collecting.sources.values())
    if hasattr(device, "capability"):
        with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
            jobs = [
                pool.submit(compile_kernel, source, device.capability)
                for source in sources
            ]
            for job in jobs:
                job.result()
    return {"kernels": len(sources), "not on cuda": absent}


def ops(report, device, only=None):
    """Every sample of every op, launched and replayed, against NumPy."""
    wrong, right, left = {}, 0, []
    for op in OPS.values():
        if report.over or (only and op.name not in only):
            left.append(op.name)
            continue
        inputs, outputs, arrays, wanted = samples_of(op)
        if not outputs:
            continue
        try:
            with using(device):
                f = sg.compile(outputs, inputs=inputs, target="cuda")
        except sg.GraphError:
            continue
        for way in ("launched", "replayed"):
            found = zip(f(*arrays), wanted, strict=True)
            bad = [m for got, (ulp, want) in found if (m := misfit(got, want, ulp))]
            if bad:
                wrong[f"{op.name} {way}"] = bad[:3]
        right += 1
    return {"ops": right, "failed": wrong, "left out": len(left)}


def compared(make, device):
    """The largest error of a graph, launched and replayed, against the reference."""
    outputs, inputs, arrays = make()
    with using(device):
        f = sg.compile(outputs, inputs=inputs, target="cuda")
    wanted = sg.compile(outputs, inputs=inputs, target="reference")(*arrays)
    worst = 0.0
    for _ in range(3):
        for got, want in zip(f(*arrays), wanted, strict=True):
            size = np.maximum(np.abs(want), 1.0)
            error = np.max(np.abs(got - want) / size, initial=0.0)
            worst = float(np.maximum(worst, error))  # NaN stays
    return worst if worst < FEATURE_ERROR else {"failed": worst}


def features(_, device):
    """Each feature, as a graph or as a part of its own."""
    found = {make.__name__: tried(compared, make, device) for make in GRAPHS}
    found |= {part.__name__: tried(part, device) for part in PARTS}
    failed = {
        name: result["failed"]
        for name, result in found.items()
        if isinstance(result, dict) and "failed" in result
    }
    return found | {"conditional nodes": device.conditionals, "failed": failed}


def data_for(inputs, samples):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(samples, 6)).astype("float32")
    y = (x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 0)
    return {leaf.name: {"x": x, "y": y}[leaf.name] for leaf in inputs}


def training_runs(report, device, samples=1000, epochs=5):
    """Six models: losses and parameters as those of the reference target."""
    results = {}
    for make in MODELS:
        runs = {}
        for target in ("cuda", "reference"):
            with sg.Graph(seed=0):
                loss, metrics, optimizer = make()
            with using(device):
                trainer = sg.Trainer(
                    loss, optimizer=optimizer, metrics=metrics, target=target, seed=3
                )
            data = data_for(trainer._objective.inputs, samples)
            options = {"epochs": epochs, "batch_size": 64, "progress": False}
            runs[target] = trainer.fit(data, **options)["loss"]
        error = np.max(np.abs(runs["cuda"] / runs["reference"] - 1))
        results[make.__name__] = float(error)
    bad = {name: error for name, error in results.items() if not error < 1e-3}
    return {"largest relative errors of losses": results, "failed": bad}


# ---- timings -------------------------------------------------------------------------


def seconds_of(device, work, least=0.3):
    """Seconds of one call of `work`, the device's included."""
    for _ in range(3):
        work()
    device.synchronise()
    count = 1
    while True:
        start = time.perf_counter()
        for _ in range(count):
            work()
        device.synchronise()
        passed = time.perf_counter() - start
        if passed > least:
            return passed / count
        count *= 4


def frame_of(device, outputs, inputs, *arrays):
    """The frame of a graph, with its inputs in place."""
    with using(device):
        f = sg.compile(outputs, inputs=inputs, target="cuda")
    f(*arrays)
    sizes = f._signature.sizes(list(arrays))
    return f.target.frame(sizes)


def mlp_step(report, device):
    """A step of 128x784-512-10 with Adam, replayed from resident data."""
    rng = np.random.default_rng(0)
    data = {
        "x": rng.normal(size=(128 * 64, 784)).astype("float32"),
        "y": rng.integers(0, 10, 128 * 64),
    }
    with sg.Graph(seed=0):
        x = sg.input("x", ("batch", 784))
        y = sg.input("y", ("batch",), dtype="int64")
        hidden = sg.nn.Sequential(sg.nn.Linear(784, 512), sg.nn.ReLU())
        loss = sg.nn.cross_entropy(sg.nn.Linear(512, 10)(hidden(x)), y)
    with using(device):
        trainer = sg.Trainer(loss, optimizer=sg.optim.Adam(1e-3), target="cuda")
    ready = dataset(trainer._objective.inputs, data)
    run = Run(evaluation(["loss"], ready.samples, 128))
    scoring = TrainingLoop(run, validation(run, trainer._steps[0], ready))
    feed = cuda_loop.CudaFeed(*scoring.steps)
    feed.start()

    def steps():
        feed.write("cells", np.zeros(cuda_loop.CELLS), np.int64)
        feed.batches[0].run(64)

    seconds = seconds_of(device, steps) / 64
    launches = len(feed.batches[0].frame.sized.steps) + 3
    return {"us per step": 1e6 * seconds, "launches per step": launches, "goal us": 30}


def bandwidths(report, device):
    """GB/s of kernels that only move memory, beside a copy."""
    n, rows, columns = 1 << 26, 1 << 15, 1 << 10
    a, b = device.allocate(4 * n), device.allocate(4 * n)
    found = {"copy": 8e-9 * n / seconds_of(device, lambda: device.copy(b, a, 4 * n))}
    device.free(a)
    device.free(b)
    flat = [sg.input(name, ("n",)) for name in "xy"]
    one = np.ones(n, "float32")
    frame = frame_of(device, sg.tanh(flat[0]) * flat[1] + flat[0], flat, one, one)
    found["elementwise"] = 12e-9 * n / seconds_of(device, frame.run)
    x = sg.input("x", ("n", columns))
    matrix = np.ones((rows, columns), "float32")
    centred = x - sg.mean(x, axis=1, keepdims=True)
    norm = sg.mean(centred * centred, axis=1, keepdims=True)
    works = {
        "softmax": sg.softmax(x), "layer norm": centred / sg.sqrt(norm + 1e-5),
        "transpose": x.T,
    }  # fmt: skip
    for name, y in works.items():
        frame = frame_of(device, y, [x], matrix)
        found[name] = 8e-9 * rows * columns / seconds_of(device, frame.run)
    return {name: round(value, 1) for name, value in found.items()}


def products(report, device, n=4096):
    """TFLOP/s of float32 products."""
    x, y = sg.input("x", (n, n)), sg.input("y", (n, n))
    one = np.ones((n, n), "float32")
    frame = frame_of(device, x @ y, [x, y], one, one)
    return {"TFLOP/s": 2e-12 * n**3 / seconds_of(device, frame.run)}


def launch_cost(report, device):
    """Microseconds of a kernel that does next to nothing."""
    x = sg.input("x", (4,))
    frame = frame_of(device, x + 1, [x], np.ones(4, "float32"))
    return {
        "replayed alone us": 1e6 * seconds_of(device, frame.run),
        "launched us": 1e6 * seconds_of(device, frame.issue),
    }


def torch_beside(report, device, n=4096):
    """The same step and product by torch, if it is installed."""
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return "torch is not installed"
    nn, cuda = torch.nn, torch.device("cuda")
    model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10)).to(cuda)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, capturable=True)
    x = torch.randn(128, 784, device=cuda)
    y = torch.randint(0, 10, (128,), device=cuda)

    @torch.compile(mode="reduce-overhead")
    def step():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    a = torch.randn(n, n, device=cuda)
    torch.cuda.synchronize()
    product = _torch_seconds(torch, lambda: a @ a)
    return {
        "us per step": 1e6 * _torch_seconds(torch, step),
        "TFLOP/s": 2e-12 * n**3 / product,
    }


def _torch_seconds(torch, work, count=100):
    for _ in range(5):
        work()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(count):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / count


def main(arguments=None):
    """Run all of it; 1 if something failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("gpu_check.json"))
    parser.add_argument("--budget", type=float, default=BUDGET_SECONDS)
    parser.add_argument("--emulate", action="store_true")
    parser.add_argument("--only", nargs="*", help="ops to check")
    given = parser.parse_args(arguments)
    report = Report(given.out, given.budget)
    if given.emulate:
        device = importlib.import_module("cuda_devices").EmulatedDevice()
    else:
        device = open_device()
    report.run(surroundings, device)
    report.run(training_runs, device, *((22, 1) if given.emulate else ()))
    report.run(features, device)
    if not given.emulate:
        for part in (mlp_step, launch_cost, bandwidths, products):
            report.run(part, device)
        report.run(compiled_ahead, device)
    report.run(ops, device, given.only)
    if not given.emulate:
        report.run(torch_beside, device)
    return int(report.failed)


if __name__ == "__main__":
    sys.exit(main())
