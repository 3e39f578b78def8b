"""The emulator finds what it is for: races, missing barriers, bad accesses."""

import numpy as np
import pytest
from cuda_devices import EmulatedDevice
from cuda_emulator import Divergence, Pointer, launch

import staticgrad as sg
from staticgrad.compiler.cuda.device import using
from staticgrad.compiler.cuda.source import cuda_loops
from staticgrad.compiler.cuda.source.lane_reductions import LaneWriter


def softmax_gradient():
    x = sg.input("x", ("n", 40))
    loss = sg.sum(sg.softmax(x) ** 2)
    value = np.random.default_rng(0).normal(size=(5, 40)).astype("float32")
    return [loss, sg.grad(loss, x)], x, value


def error(device):
    outputs, x, value = softmax_gradient()
    with using(device):
        f = sg.compile(outputs, inputs=[x], target="cuda")
    want = sg.compile(outputs, inputs=[x], target="reference")(value)
    pairs = zip(f(value), want, strict=True)
    return max(float(np.max(np.abs(got - right))) for got, right in pairs)


class Changing(EmulatedDevice):
    """Changes the text of kernels before they run."""

    def __init__(self, old, new):
        super().__init__()
        self.old, self.new = old, new
        self.changed = 0

    def launch(self, kernel, grid, block, arguments):
        text = kernel.canonical.replace(self.old, self.new)
        self.changed += text != kernel.canonical
        kernel = cuda_loops.CudaSource(
            text, kernel.kinds, kernel.sizes, kernel.mapping, kernel.guarded, False
        )
        super().launch(kernel, grid, block, arguments)


def test_a_missing_barrier_of_a_tile_is_found():
    x = sg.input("x", (40, 40))
    device = Changing("cuda.syncthreads()", "pass")
    with using(device):
        f = sg.compile(x.T, inputs=[x], target="cuda")
    value = np.arange(1600, dtype="float32").reshape(40, 40)
    assert any(not np.array_equal(f(value), value.T) for _ in range(4))
    assert device.changed > 0


def test_the_kernels_as_they_are_agree():
    assert error(EmulatedDevice()) < 1e-6


def test_a_missing_barrier_of_blocks_is_found():
    x = sg.input("x", ("n", 40))
    device = Changing("cuda.syncthreads()", "pass")
    with using(device):
        f = sg.compile(sg.sum(x * x), inputs=[x], target="cuda")
    value = np.random.default_rng(0).normal(size=(5, 40)).astype("float32")
    want = float(np.sum(value * value))
    wrong = [not abs(float(f(value)) - want) < 1e-3 for _ in range(4)]  # NaN too
    assert device.changed > 0
    assert any(wrong)


@pytest.mark.parametrize("barrier", ["cuda.syncwarp()", "pass"])
def test_a_missing_barrier_of_warps_is_found(barrier):
    text = (
        "def kernel(p0, p1):\n"
        "    lane = cuda.threadIdx.x\n"
        "    p0[lane] = lane\n"
        f"    {barrier}\n"
        "    p1[lane] = p0[31 - lane]\n"
    )
    wrong = []
    for seed in range(4):
        out = np.full(32, np.nan)
        launch(text, (1, 1), 32, [Pointer(np.full(32, np.nan)), Pointer(out)], seed)
        wrong.append(not (out == np.arange(32)[::-1]).all())
    assert any(wrong) == (barrier == "pass")


def test_a_barrier_that_not_all_reach_is_found():
    text = (
        "def kernel(p0):\n"
        "    if cuda.threadIdx.x < 3:\n"
        "        cuda.syncthreads()\n"
        "    p0[0] = 1\n"
    )
    with pytest.raises(Divergence, match="have left"):
        launch(text, (1, 1), 32, [Pointer(np.zeros(1))])


def test_lanes_that_wait_for_different_things_are_found():
    text = (
        "def kernel(p0):\n"
        "    if cuda.threadIdx.x < 3:\n"
        "        cuda.syncwarp()\n"
        "    else:\n"
        "        cuda.shfl_xor_sync(0xffffffff, 1, 1)\n"
    )
    with pytest.raises(Divergence, match="lanes wait"):
        launch(text, (1, 1), 32, [Pointer(np.zeros(1))])


@pytest.mark.parametrize("index", ["cuda.grid(1) + 1", "cuda.grid(1) - 1"])
def test_an_access_out_of_bounds_is_found(index):
    text = f"def kernel(p0):\n    p0[{index}] = 1\n"
    with pytest.raises(IndexError, match="write of element"):
        launch(text, (1, 1), 32, [Pointer(np.zeros(32))])
    text = f"def kernel(p0):\n    x = p0[{index}]\n"
    with pytest.raises(IndexError, match="read of element"):
        launch(text, (1, 1), 32, [Pointer(np.zeros(32))])


def test_shared_memory_starts_as_nan_and_is_the_blocks_own():
    text = (
        "def kernel(p0):\n"
        "    s = cuda.shared.array(32, dtype=float32)\n"
        "    if cuda.threadIdx.x == 0:\n"
        "        p0[cuda.blockIdx.x] = s[0]\n"
        "        s[0] = float32(1)\n"
        "    cuda.syncthreads()\n"
    )
    out = np.zeros(3)
    launch(text, (3, 1), 32, [Pointer(out)])
    assert np.isnan(out).all()


@pytest.mark.parametrize("seed", range(3))
def test_a_race_between_lanes_depends_on_their_order(seed):
    text = "def kernel(p0):\n    p0[0] = cuda.threadIdx.x\n"
    found = set()
    for number in range(8):
        out = np.zeros(1)
        launch(text, (1, 1), 32, [Pointer(out)], seed=8 * seed + number)
        found.add(float(out[0]))
    assert len(found) > 1


def test_shuffles_need_whole_warps():
    text = "def kernel(p0):\n    p0[0] = cuda.shfl_xor_sync(0xffffffff, 1, 16)\n"
    with pytest.raises((Divergence, KeyError)):
        launch(text, (1, 1), 20, [Pointer(np.zeros(1))])


def test_a_combination_without_its_last_step_is_found(monkeypatch):
    def shortened(self, combine, register):
        kept = self.statements.writer
        before = len(kept._lines)
        plain(self, combine, register)
        del kept._lines[before + 8 : before + 10]  # distance 1 of a butterfly

    plain = LaneWriter._butterfly
    monkeypatch.setattr(LaneWriter, "_butterfly", shortened)
    cuda_loops.cuda_source.cache_clear()
    try:
        assert not error(EmulatedDevice()) < 1e-4
    finally:
        cuda_loops.cuda_source.cache_clear()
