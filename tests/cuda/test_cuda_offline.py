"""Every kernel compiles for real GPUs, without one: types, registers, spills, float64.

These tests need the packages of staticgrad[cuda]: run them with ``pytest -m cuda``.
"""

import subprocess
import sys

import numba
import numpy as np
import pytest
from cuda_offline import CAPABILITIES, Assembled, Offline
from fake_cuda import FakeGpu
from test_cuda_features import own_function
from test_cuda_ops import TURNED, samples_of
from test_cuda_training import MODELS, data_of

import staticgrad as sg
from staticgrad.compiler.cuda.batch_feeding import gather_source, record_source
from staticgrad.compiler.cuda.conditional_nodes import (
    SETTER,
    SETTING,
    decision_source,
    increment_source,
)
from staticgrad.compiler.cuda.cuda_compile import compile_kernel, linked
from staticgrad.compiler.cuda.device import using
from staticgrad.compiler.cuda.launches import finite_source
from staticgrad.ir.op import OPS

pytestmark = pytest.mark.cuda

# Numba's CUDA packages warn of themselves.
quietly = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def assembled():
    return Assembled()


@quietly
@pytest.mark.parametrize("op", [op for op in OPS.values() if op.samples()], ids=repr)
def test_kernels_of_ops(op, assembled):
    inputs, outputs, *_ = samples_of(op)
    with using(assembled):
        sg.compile(outputs, inputs=inputs, target="cuda")


@quietly
@pytest.mark.parametrize("make", MODELS, ids=lambda f: f.__name__)
def test_kernels_of_training_steps(make):
    device = Offline()
    with sg.Graph(seed=0):
        loss, metrics, optimizer = make()
    with using(device):
        trainer = sg.Trainer(loss, optimizer=optimizer, metrics=metrics, target="cuda")
        assert trainer._score
    assert len(device.seen) > 3
    registers = [
        figures["registers"] for one in device.seen.values() for figures in one
    ]
    assert max(registers) <= 96  # 16 warps of a multiprocessor at least


@quietly
def test_kernels_of_the_training_loop():
    device = Offline()
    for dtype in ("float32", "float64", "int64", "bool", "bfloat16"):
        device.load(gather_source(np.dtype(dtype)))
    device.load(record_source(["float32", "float64"], [False, True], True))
    device.load(record_source(["float32"], [False], False))
    device.load(record_source(["float16", "float64"], [False, True], True, gate=0))
    device.load(record_source(["float16", "bfloat16", "bool"], [False] * 3, True))
    device.load(finite_source(["float32", "float64"]))
    device.load(finite_source(["float16", "bfloat16"]))
    for dtype in ("bool", "int64", "int32"):
        device.load(decision_source(np.dtype(dtype)))
    device.load(increment_source())
    assert len(device.seen) == 15


@quietly
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_what_sets_conditions_is_assembled(capability):
    code, log = linked(SETTING, SETTER, capability)
    assert code[:4] == b"\x7fELF"
    assert SETTER in log


@quietly
@pytest.mark.parametrize("name", TURNED)
def test_copies_that_turn_axes(name, assembled):
    make, shape, dtype = TURNED[name]
    x = sg.input("x", shape, dtype=dtype)
    with using(assembled):
        f = sg.compile(make(x), inputs=[x], target="cuda")
    assert "tile = " in f.source()


@quietly
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_functions_of_the_user_s_are_compiled_into_kernels(capability):
    outputs, inputs = own_function()
    device = Offline([capability])
    with using(device):
        sg.compile(outputs, inputs=inputs, target="cuda")
    assert any("soft_" in text for text, _ in device.seen)


@quietly
def test_what_numba_does_not_compile_for_a_gpu_is_named_with_the_line():
    @numba.njit
    def telling(x):
        if x < 0:
            raise ValueError(x)
        return x

    x = sg.input("x", (3,))
    y = sg.custom_op("telling", kind="scalar", forward=telling)(x)
    text = r"telling requires .*the function telling.*not on cuda; .* at test_cuda_off"
    with using(Offline()), pytest.raises(sg.GraphError, match=text):
        sg.compile(y, inputs=[x], target="cuda")


@quietly
def test_code_is_kept_on_disk(tmp_path, monkeypatch):
    from staticgrad.compiler.cuda import cuda_compile as compiling
    from staticgrad.compiler.host import cache

    folder = cache.Cache(tmp_path)
    monkeypatch.setattr(compiling, "default_cache", lambda: folder)
    source = finite_source(["float32"])
    first = compile_kernel(source, (9, 0))
    monkeypatch.setattr(compiling, "ptx_of", None)
    assert compile_kernel(source, (9, 0)) == first
    (entry,) = tmp_path.iterdir()
    entry.write_bytes(entry.read_bytes()[:-1])
    with pytest.raises(TypeError):
        compile_kernel(source, (9, 0))  # a broken entry is compiled again


@quietly
def test_real_code_through_the_fake_driver():
    """The driver loads what the compiler makes; the emulator runs the same text."""
    gpu = FakeGpu()
    loaded = []

    def compiled(source, capability):
        image = compile_kernel(source, capability)
        loaded.append(image.code[:4])
        fake = FakeGpu.compile(gpu, source, capability)
        return type(image)(image.code, fake.entry, image.figures)

    gpu.compile = compiled
    with sg.Graph(seed=0):
        loss, metrics, optimizer = MODELS[0]()
    with using(gpu.driver()):
        trainer = sg.Trainer(loss, optimizer=optimizer, metrics=metrics, target="cuda")
    history = trainer.fit(data_of("xy"), epochs=2, batch_size=8, progress=False)
    assert set(loaded) == {b"\x7fELF"}
    assert gpu.errors == []
    assert history["loss"][1] < history["loss"][0] * 1.5


@quietly
def test_numpy_without_row_stack():
    """NumPy 2.5 has dropped a name that numba-cuda 0.30 uses when it compiles."""
    code = (
        "import numpy as np\n"
        "from staticgrad.compiler.cuda.cuda_compile import ptx_of\n"
        "from staticgrad.compiler.cuda.launches import finite_source\n"
        "np.__dict__.pop('row_stack', None)\n"
        "text, entry = ptx_of(finite_source(['float32']), (8, 0), 'mine')\n"
        "print('.entry mine' in text)\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert out.stdout.strip() == "True", out.stderr
