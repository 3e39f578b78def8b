"""The driver over its fake: errors, captures, memory, and what is never imported."""

import ctypes
import gc
import subprocess
import sys

import numpy as np
import pytest
from cuda_devices import EmulatedDevice
from fake_cuda import FakeGpu, library_path

import staticgrad as sg
from staticgrad.compiler.cuda.cuda_compile import DeviceCode, compile_kernel
from staticgrad.compiler.cuda.device import Product, using
from staticgrad.compiler.cuda.driver import Driver
from staticgrad.compiler.cuda.launches import finite_source


def simple():
    x = sg.input("x", ("n", 3))
    return sg.exp(x) @ x.T, x


def on(device):
    y, x = simple()
    with using(device):
        return sg.compile(y, inputs=[x], target="cuda")


def test_a_call_is_launched_then_captured_then_replayed():
    gpu = FakeGpu()
    f = on(gpu.driver())
    value = np.linspace(-1, 1, 6, dtype="float32").reshape(2, 3)
    for call in range(4):
        np.testing.assert_allclose(f(value), np.exp(value) @ value.T, rtol=1e-5)
        assert gpu.library.fake_captures() == min(call, 1)
        assert gpu.library.fake_replays() == call
    f(np.zeros((5, 3), "float32"))  # other sizes: other memory and graph
    assert gpu.library.fake_captures() == 1
    assert gpu.errors == []


def test_an_allocation_inside_of_a_capture_is_found(monkeypatch):
    gpu = FakeGpu()
    driver = gpu.driver()
    f = on(driver)
    value = np.ones((2, 3), "float32")
    f(value)
    plain = Driver.launch

    def allocating(self, *arguments):
        self.allocate(64)
        plain(self, *arguments)

    monkeypatch.setattr(Driver, "launch", allocating)
    with pytest.raises(sg.errors.DeviceError, match="must not be captured.*cuMemAlloc"):
        f(value)


def test_waiting_and_copying_inside_of_a_capture_are_found():
    driver = FakeGpu().driver()
    address = driver.allocate(64)
    driver.begin_capture()
    with pytest.raises(sg.errors.DeviceError, match="must not be captured"):
        driver.synchronise()
    with pytest.raises(sg.errors.DeviceError, match="must not be captured"):
        driver.read(address, np.zeros(8))
    with pytest.raises(sg.errors.DeviceError, match="must not be captured"):
        driver.write(address, np.zeros(8))
    driver.end_capture()


def test_memory_given_back_inside_of_a_capture_is_freed_later():
    gpu = FakeGpu()
    driver = gpu.driver()
    live = gpu.library.fake_live()
    address = driver.allocate(64)
    driver.begin_capture()
    driver.free(address)
    driver.end_capture()
    driver.allocate(64)
    assert gpu.library.fake_live() == live + 1


def test_graphs_go_with_what_captured_them():
    gpu = FakeGpu()
    driver = gpu.driver()
    graphs, live = gpu.library.fake_graphs(), gpu.library.fake_live()
    f = on(driver)
    for _ in range(3):
        f(np.ones((2, 3), "float32"))
    assert gpu.library.fake_graphs() == graphs + 1
    del f
    gc.collect()
    driver.free(driver.allocate(8))
    driver.allocate(8)
    assert gpu.library.fake_graphs() == graphs
    assert gpu.library.fake_live() <= live + 2  # the workspace of cuBLAS, and this one


def test_no_driver_no_gpu_and_an_old_driver():
    with pytest.raises(sg.errors.DeviceError, match="requires an NVIDIA driver, got"):
        Driver("libthere_is_none.so")
    gpu = FakeGpu()
    gpu.library.fake_devices(0)
    with pytest.raises(sg.errors.DeviceError, match=r"got no GPU.*use target='cpu'"):
        gpu.driver()
    gpu = FakeGpu()
    gpu.library.fake_version(12040)
    with pytest.raises(
        sg.errors.DeviceError, match=r"CUDA 13.0 or newer, got .* 12.4;"
    ):
        gpu.driver()


def test_out_of_device_memory():
    gpu = FakeGpu()
    f = on(gpu.driver())
    gpu.library.fake_memory(1 << 10)
    with pytest.raises(sg.errors.DeviceError, match=r"bytes more of device memory"):
        f(np.zeros((1000, 3), "float32"))
    gpu.library.fake_memory(1 << 30)
    assert f(np.zeros((1000, 3), "float32")).shape == (1000, 1000)


def test_no_cublas():
    gpu = FakeGpu()
    driver = Driver(library_path(), "libno_blas.so", gpu.compile)
    with pytest.raises(sg.errors.DeviceError, match=r"requires cuBLAS, got"):
        on(driver)(np.zeros((2, 3), "float32"))


def test_code_that_the_driver_refuses():
    gpu = FakeGpu()
    gpu.compile = lambda source, capability: DeviceCode(b"text", "kernel", {})
    with pytest.raises(sg.errors.DeviceError, match=r"CUDA error 200 of cuModuleLoad"):
        on(gpu.driver())


def test_a_gpu_that_is_too_old():
    with pytest.raises(
        sg.errors.DeviceError, match=r"capability 7.5 or newer, got 6.1"
    ):
        compile_kernel(finite_source(["float32"]), (6, 1))


def test_threads_enter_the_context_and_forks_may_not():
    driver = FakeGpu().driver()
    driver._entered = type("", (), {})()
    driver.allocate(8)
    assert driver._entered.process == driver._process
    driver._entered = type("", (), {})()
    driver._process = -1
    with pytest.raises(sg.errors.DeviceError, match="forked from it"):
        driver.allocate(8)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("transposed", [(a, b) for a in (0, 1) for b in (0, 1)])
def test_products(dtype, batch, transposed):
    rng = np.random.default_rng(0)
    m, n, k = 4, 3, 5
    a, b = rng.normal(size=(batch, m, k)), rng.normal(size=(batch, k, n))
    a, b = a.astype(dtype), b.astype(dtype)
    transposed_a, transposed_b = map(bool, transposed)
    product = Product(
        np.dtype(dtype), m, n, k, (transposed_a, transposed_b),
        (m if transposed_a else k, k if transposed_b else n, n), batch, (m * k, k * n, m
        * n), 1.0, 0.0,
    )  # fmt: skip
    for device in (FakeGpu().driver(), EmulatedDevice()):
        size = np.dtype(dtype).itemsize * batch
        x, y, z = (device.allocate(size * count) for count in (m * k, k * n, m * n))
        device.write(x, np.ascontiguousarray(a.swapaxes(1, 2) if transposed_a else a))
        device.write(y, np.ascontiguousarray(b.swapaxes(1, 2) if transposed_b else b))
        device.multiply(product, x, y, z)
        got = np.zeros((batch, m, n), dtype)
        device.read(z, got)
        np.testing.assert_allclose(
            got, a @ b, rtol=1e-5 if dtype == "float32" else 1e-13
        )


def test_products_of_integers_are_kernels():
    x = sg.input("x", (2, 3), dtype="int32")
    gpu = FakeGpu()
    with using(gpu.driver()):
        f = sg.compile(x @ x.T, inputs=[x], target="cuda")
    value = np.arange(6, dtype="int32").reshape(2, 3)
    np.testing.assert_array_equal(f(value), value @ value.T)


def test_importing_staticgrad_imports_no_cuda_package():
    code = (
        "import sys, staticgrad as sg\n"
        "x = sg.input('x', (2,))\n"
        "sg.compile(x + 1, inputs=[x])([1, 2])\n"
        "bad = [m for m in sys.modules if m.split('.')[0] in ('cuda', 'numba_cuda')]\n"
        "print([*bad, *(m for m in sys.modules if m.startswith('numba.cuda'))])\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert out.stdout.strip() == "[]", out.stderr


def test_without_a_gpu_the_message_says_what_to_do():
    code = (
        "import staticgrad as sg\n"
        "x = sg.input('x', (2,))\n"
        "try:\n"
        "    sg.compile(x + 1, inputs=[x], target='cuda')\n"
        "except sg.errors.DeviceError as error:\n"
        "    print(error)\n"
        "else:\n"
        "    print('a GPU: requires nothing; use it')\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "requires" in out.stdout, out.stderr
    assert "use" in out.stdout or "install" in out.stdout


def test_the_fake_checks_where_memory_ends():
    gpu = FakeGpu()
    driver = gpu.driver()
    address = driver.allocate(8)
    with pytest.raises(sg.errors.DeviceError, match="CUDA error 400"):
        driver.write(address, np.zeros(2))
    assert gpu.library.fake_extent(ctypes.c_uint64(address + 4)) == 4
