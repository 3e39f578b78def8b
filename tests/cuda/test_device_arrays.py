"""Arrays of other libraries as inputs, on the host and on a GPU, and ours for them."""

import array
import gc
import subprocess
import sys

import numpy as np
import pytest
from cuda_devices import EmulatedDevice
from fake_cuda import FakeGpu

import staticgrad as sg
from staticgrad.compiler.cuda import dlpack
from staticgrad.compiler.cuda.device import using
from staticgrad.compiler.cuda.device_arrays import DeviceArray

X = np.linspace(-1, 1, 6, dtype="float32").reshape(2, 3)


class Foreign:
    """An array of another library on the GPU of `driver`."""

    def __init__(self, driver, values, **more):
        self.driver = driver
        self.values = np.ascontiguousarray(values)
        self.address = driver.allocate(self.values.nbytes)
        driver.write(self.address, self.values)
        self.__cuda_array_interface__ = {
            "version": 3, "shape": values.shape, "typestr": values.dtype.str,
            "data": (self.address, False), "strides": None, **more,
        }  # fmt: skip


class Packed:
    """One that knows DLPack only."""

    def __init__(self, driver, values):
        self.inner = Foreign(driver, values)
        self.asked = 0

    def __dlpack_device__(self):
        return 2, 0

    def __dlpack__(self, **_):
        self.asked += 1
        values = self.inner.values
        return dlpack.given(self.inner.address, values.dtype, values.shape, self)


class HostPacked:
    """One on the host that knows DLPack only."""

    def __init__(self, values):
        self.values = values

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()

    def __dlpack__(self, **more):
        return self.values.__dlpack__(**more)


def on_gpu():
    gpu = FakeGpu()
    driver = gpu.driver()
    x = sg.input("x", ("n", 3))
    with using(driver):
        return sg.compile(x * 2 + 1, inputs=[x], target="cuda"), driver, gpu


@pytest.mark.parametrize("kind", [Foreign, Packed])
def test_an_array_on_the_gpu_goes_in_without_the_host(kind, monkeypatch):
    f, driver, gpu = on_gpu()
    given = kind(driver, X)
    f(X)  # constants are there now
    uploads = []
    monkeypatch.setattr(driver, "write", lambda *more: uploads.append(more))
    for _ in range(3):
        np.testing.assert_array_equal(f(given), X * 2 + 1)
    assert uploads == []
    assert gpu.errors == []


def test_outputs_stay_on_the_gpu_and_go_back_in():
    f, driver, gpu = on_gpu()
    y = f.on_device(Foreign(driver, X))
    assert isinstance(y, DeviceArray)
    assert (y.shape, y.dtype, y.ndim, y.size, y.nbytes, len(y)) == (
        (2, 3), np.float32, 2, 6, 24, 2,
    )  # fmt: skip
    z = f.on_device(y)
    np.testing.assert_array_equal(y.numpy(), X * 2 + 1)
    np.testing.assert_array_equal(np.asarray(z), X * 4 + 3)
    np.testing.assert_array_equal(f(z), X * 8 + 7)
    live = gpu.library.fake_live()
    del y, z
    gc.collect()
    driver.free(driver.allocate(8))
    assert gpu.library.fake_live() < live


def test_what_an_output_says_of_itself():
    f, driver, _ = on_gpu()
    y = f.on_device(X)
    said = y.__cuda_array_interface__
    assert said["shape"] == (2, 3)
    assert said["typestr"] == "<f4"
    assert said["data"] == (y.address, False)
    assert said["stream"] == driver.stream.value
    assert y.__dlpack_device__() == (2, 0)
    with pytest.raises(ValueError, match="NumPy needs a copy"):
        np.asarray(y, copy=False)
    assert repr(y) == "DeviceArray(float32[2, 3])"


def test_capsules_keep_memory_until_they_are_given_back():
    f, _, _ = on_gpu()
    before = len(dlpack._lent)
    y = f.on_device(X)
    capsule = y.__dlpack__(stream=1)
    found = dlpack.taken(capsule)
    assert (found.address, found.dtype, found.shape) == (y.address, y.dtype, y.shape)
    with pytest.raises(ValueError, match="name"):
        dlpack.taken(capsule)  # used up
    del y, capsule
    gc.collect()
    assert len(dlpack._lent) == before + 1
    found.release()
    assert len(dlpack._lent) == before
    never_taken = f.on_device(X).__dlpack__()
    assert len(dlpack._lent) == before + 1
    del never_taken
    assert len(dlpack._lent) == before


def test_a_capsule_is_given_back_with_the_input_made_of_it():
    f, driver, _ = on_gpu()
    given = Packed(driver, X)
    before = len(dlpack._lent)
    f(given)
    gc.collect()
    assert given.asked == 1
    assert len(dlpack._lent) == before


def test_another_stream_is_waited_for(monkeypatch):
    f, driver, _ = on_gpu()
    waited = []
    monkeypatch.setattr(driver, "wait_for", waited.append)
    f(Foreign(driver, X, stream=7))
    f(Foreign(driver, X, stream=None))
    assert waited == [7]
    monkeypatch.undo()
    driver.wait_for(driver.stream.value)


def test_a_bound_executable_reads_the_gpu_anew():
    f, driver, _ = on_gpu()
    given = Foreign(driver, X)
    bound = f.bind(given)
    np.testing.assert_array_equal(bound(), X * 2 + 1)
    driver.write(given.address, X + 1)
    np.testing.assert_array_equal(bound(), X * 2 + 3)


def test_what_does_not_fit_is_refused_at_the_call():
    f, driver, _ = on_gpu()
    with pytest.raises(sg.DTypeError, match="requires float32, got float64 on a GPU"):
        f(Foreign(driver, X.astype("float64")))
    with pytest.raises(sg.GraphError, match=r"contiguous array on the GPU.*\(4, 8\)"):
        f(Foreign(driver, X, strides=(4, 8)))
    with pytest.raises(sg.ShapeError, match="shape \\(3,\\)"):
        f(Foreign(driver, X[0]))
    x = sg.input("x", ("n", 3))
    cpu = sg.compile(x * 2, inputs=[x])
    with pytest.raises(sg.GraphError, match="array on the host, got Foreign on a GPU"):
        cpu(Foreign(driver, X))
    with pytest.raises(sg.GraphError, match="on_device requires target 'cuda'"):
        cpu.on_device(X)


def test_errors_reach_outputs_that_stay_on_the_device():
    x, i = sg.input("x", (3,)), sg.input("i", (2,), dtype="int64")
    loss = sg.sum(x)
    with using(EmulatedDevice()):
        f = sg.compile([x[i], loss], inputs=[x, i], finite=[loss], target="cuda")
    with pytest.raises(sg.IndexOutOfRange, match="got 5"):
        f.on_device(np.zeros(3), np.array([0, 5]))
    with pytest.raises(sg.NonFiniteError, match="at test_device_arrays"):
        f.on_device(np.array([1, np.inf, 0]), np.array([0, 1]))
    picked, total = f.on_device(np.arange(3), np.array([2, 0]))
    assert picked.numpy().tolist() == [2, 0]
    assert float(total.numpy()) == 3


@pytest.mark.parametrize("make", [HostPacked, memoryview, lambda v: v])
def test_memory_of_others_on_the_host_is_read_where_it_is(make):
    x = sg.input("x", (2, 3))
    f = sg.compile(x * 2, inputs=[x])
    values = X.copy()
    given = make(values)
    np.testing.assert_array_equal(f(given), X * 2)
    bound = f.bind(given)
    values[...] = 5
    np.testing.assert_array_equal(bound(), np.full((2, 3), 10))


def test_arrays_of_python_are_read_where_they_are():
    x = sg.input("x", (3,))
    f = sg.compile(x * 2, inputs=[x])
    values = array.array("f", [1, 2, 3])
    bound = f.bind(values)
    assert bound().tolist() == [2, 4, 6]
    values[0] = 7
    assert bound().tolist() == [14, 4, 6]
    with pytest.raises(sg.DTypeError, match="bind requires a float32 array"):
        f.bind([1.0, 2.0, 3.0])


def test_a_capsule_may_go_when_python_ends():
    code = """if True:
        import sys
        import numpy as np
        from staticgrad.compiler.cuda import dlpack
        sys.kept = dlpack.given(64, np.dtype("float32"), (3,), None)
    """
    run = subprocess.run([sys.executable, "-c", code], check=False)
    assert run.returncode == 0


def fitted(driver, place, **options):
    with sg.Graph(seed=0):
        x, y = sg.input("x", ("batch", 3)), sg.input("y", ("batch",))
        scale = sg.input("scale", (3,))
        w = sg.parameter(np.zeros(3, "float32"), name="w")
        loss = sg.mean((sg.sum(x * scale * w, axis=1) - y) ** 2)
    with using(driver):
        trainer = sg.Trainer(loss, sg.optim.SGD(0.1), target="cuda", **options)
    rng = np.random.default_rng(0)
    arrays = {
        "x": rng.normal(size=(10, 3)).astype("float32"),
        "y": rng.normal(size=10).astype("float32"),
        "scale": np.array([1, 2, 3], "float32"),
    }
    data = {name: place(array) for name, array in arrays.items()}
    settings = {"epochs": 3, "batch_size": 4, "progress": False}
    history = trainer.fit(data, validation=data, **settings)
    score = trainer.evaluate(data, batch_size=3)
    return history["val_loss"].tolist(), score, w.value.tolist()


@pytest.mark.parametrize("kind", [Foreign, Packed])
def test_training_data_may_lie_on_the_gpu(kind, monkeypatch):
    gpu = FakeGpu()
    driver = gpu.driver()
    write, sizes = driver.write, []
    wanted = fitted(driver, lambda array: array)

    def counted(address, array):
        sizes.append(array.nbytes)
        write(address, array)

    def placed(array):
        found = kind(driver, array)
        sizes.clear()
        return found

    monkeypatch.setattr(driver, "write", counted)
    assert fitted(driver, placed) == wanted
    assert gpu.errors == []
    assert 120 not in sizes  # x was not uploaded


def test_groups_of_batches_take_data_on_the_gpu():
    driver = FakeGpu().driver()
    wanted = fitted(driver, lambda array: array, accumulate=2)
    assert fitted(driver, lambda array: Foreign(driver, array), accumulate=2) == wanted


def test_training_on_the_host_refuses_data_on_the_gpu():
    driver = FakeGpu().driver()
    x = sg.input("x", ("batch", 3))
    w = sg.parameter(np.zeros(3, "float32"), name="w")
    trainer = sg.Trainer(sg.mean((x - w) ** 2), optimizer=sg.optim.SGD(0.1))
    text = "'x' requires an array on the host, got Foreign on a GPU; .* target='cuda'"
    with pytest.raises(sg.GraphError, match=text):
        trainer.fit({"x": Foreign(driver, X)}, progress=False)
    with pytest.raises(sg.GraphError, match=text):
        trainer.evaluate({"x": Foreign(driver, X)})


def test_training_data_on_the_gpu_has_the_dtype_of_its_input():
    driver = FakeGpu().driver()
    with pytest.raises(sg.DTypeError, match="'x' requires float32, got float64 on a G"):
        fitted(driver, lambda array: Foreign(driver, array.astype("float64")))
