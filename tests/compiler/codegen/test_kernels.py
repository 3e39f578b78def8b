"""Do generated kernels compute what NumPy computes, and are they vectorised?

Kernels are written by hand, compiled and called by address.
"""

import os
import platform
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from handwritten import (
    M,
    N,
    apply,
    column_sums,
    elementwise,
    gather,
    kernel,
    reduction,
    row_softmax,
)

from staticgrad.compiler.codegen.call_kernel import BoundKernel
from staticgrad.compiler.codegen.kernel_source import native
from staticgrad.compiler.codegen.loops.loop_source import kernel_source
from staticgrad.compiler.codegen.native_compile import ir_of
from staticgrad.compiler.codegen.scratch import scratch_bytes
from staticgrad.compiler.codegen.text_emitter import canonical
from staticgrad.compiler.host import numba_internals
from staticgrad.compiler.host.processor import has_fma, vector_bytes
from staticgrad.compiler.kernel_ir.kernels import (
    Access,
    Accumulate,
    Compute,
    Index,
    Initial,
    Load,
    Loop,
    Number,
    Operand,
    Scratch,
    Site,
    Store,
)
from staticgrad.ir.expression import parse
from staticgrad.ir.size import Size
from staticgrad.ir.source import Source
from staticgrad.ir.types import BOOL, FLOAT32, FLOAT64, INT32, INT64

RNG = np.random.default_rng(7)


def test_elementwise_with_several_operands_and_a_literal():
    x, y = RNG.normal(size=(2, 1000)).astype("f4")
    out = apply("{0} * {1} + {T}(0.1)", x, y)
    np.testing.assert_array_equal(out, x * y + np.float32(0.1))


@pytest.mark.parametrize("combine", ["add", "multiply", "maximum", "minimum"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint8"])
def test_full_reductions(combine, dtype):
    function = {"add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min"}
    made = reduction(combine, np.dtype(dtype))
    for size in (1, 5, 1000):
        x = np.exp(RNG.normal(size=size) * 0.3).astype(dtype)
        out = np.zeros((), dtype)
        BoundKernel(made, [x, out], {"n": size}).run()
        options = {"dtype": dtype} if combine in ("add", "multiply") else {}
        expected = getattr(np, function[combine])(x.astype(dtype), **options)
        np.testing.assert_allclose(out, expected, rtol=1e-5)


def test_reductions_of_nothing_give_the_identity():
    for combine, dtype, value in (
        ("add", FLOAT32, 0.0),
        ("multiply", INT32, 1),
        ("maximum", FLOAT64, -np.inf),
        ("minimum", INT64, np.iinfo("i8").max),
        ("maximum", np.dtype("u2"), 0),
        ("and", BOOL, True),
        ("or", BOOL, False),
    ):
        out = np.ones((), dtype)
        empty = np.zeros(1, dtype)
        BoundKernel(reduction(combine, dtype), [empty, out], {"n": 0}).run()
        assert out == value


def test_bool_reductions():
    x = np.array([True, True, False])
    for combine, value in (("and", False), ("or", True)):
        out = np.zeros((), bool)
        BoundKernel(reduction(combine, BOOL), [x, out], {"n": 3}).run()
        assert out == value


def test_reductions_pass_nan_on():
    x = np.ones(100, "f4")
    x[63] = np.nan
    for combine in ("add", "multiply", "maximum", "minimum"):
        out = np.zeros((), "f4")
        BoundKernel(reduction(combine, FLOAT32), [x, out], {"n": 100}).run()
        assert np.isnan(out)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_row_softmax_with_symbolic_sizes(dtype):
    made = row_softmax(np.dtype(dtype))
    assert kernel_source(made).sizes == (M,)
    assert scratch_bytes(made, 0, {"n": 3, "m": 17}) == (
        128 if dtype == "float32" else 192
    )
    for rows, columns in ((3, 17), (1, 1), (5, 300), (0, 4)):
        x = RNG.normal(size=(rows, columns)).astype(dtype)
        y = np.zeros_like(x)
        BoundKernel(made, [x, y], {"n": rows, "m": columns}, per_chunk=2).run()
        exact = np.exp(x.astype("f8") - x.max(1, keepdims=True, initial=-np.inf))
        exact /= exact.sum(1, keepdims=True)
        np.testing.assert_allclose(y, exact, rtol=3e-6)


def test_column_sums_in_slots():
    x = RNG.normal(size=(10, 37)).astype("f4")
    slots = np.full((4, 37), np.nan, "f4")
    BoundKernel(column_sums(), [x, slots], {"n": 10, "m": 37}, per_chunk=3).run()
    parts = [x[begin : begin + 3].sum(0) for begin in range(0, 10, 3)]
    np.testing.assert_allclose(slots, parts, rtol=1e-5, atol=1e-6)


def test_slots_of_no_rows_hold_the_identity():
    slots = np.full((1, 5), np.nan, "f4")
    BoundKernel(column_sums(), [np.zeros((1, 5), "f4"), slots], {"n": 0, "m": 5}).run()
    np.testing.assert_array_equal(slots, 0)


def test_gather():
    table = RNG.normal(size=(10, 6)).astype("f4")
    index = np.array([0, 9, -1, -10, 3])
    out = np.zeros((5, 6), "f4")
    call = BoundKernel(gather(), [table, index, out], {"n": 5, "m": 6}).run()
    np.testing.assert_array_equal(out, table[index])
    assert not call.status.any()


@pytest.mark.parametrize("bad", [10, -11, 2**62, -(2**63)])
def test_a_bad_index_is_reported_and_reads_row_0(bad):
    table = RNG.normal(size=(10, 6)).astype("f4")
    index = np.array([0, 3, bad, 2, 99])
    out = np.zeros((5, 6), "f4")
    values = {"n": 5, "m": 6}
    call = BoundKernel(gather(), [table, index, out], values, site_base=7)
    for begin in (4, 2, 0):  # the last one first: the lowest position still wins
        call.run_range(begin, min(begin + 2, 5))
    assert list(call.status[:6]) == [0, 1, 7, 2, bad, 10]
    np.testing.assert_array_equal(out[[2, 4]], table[[0, 0]])


def test_labels_do_not_wrap_and_unsigned_ones_are_not_negative():
    table, out = np.ones((10, 1), "f4"), np.zeros((1, 1), "f4")
    values = {"n": 1, "m": 1}
    call = BoundKernel(gather(wrap=False), [table, np.array([-1]), out], values).run()
    assert list(call.status[1:6]) == [1, 0, 0, -1, 10]
    huge = np.array([2**64 - 1], "u8")
    made = gather(dtype=np.dtype("u8"))
    assert BoundKernel(made, [table, huge, out], values).run().status[1] == 1


def test_reports_from_many_threads_leave_the_lowest():
    table, out = np.ones((10, 1), "f4"), np.zeros((4000, 1), "f4")
    index = np.full(4000, 99)
    index[:5] = 0
    call = BoundKernel(gather(), [table, index, out], {"n": 4000, "m": 1})
    ranges = [(begin, begin + 1000) for begin in range(0, 4000, 1000)]
    threads = [threading.Thread(target=call.run_range, args=r) for r in ranges]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(call.status[:6]) == [0, 1, 0, 5, 99, 10]


def test_three_loops_negative_strides_and_offsets():
    # y[k, j, i] = x[i, j, -1 - k], symbolic in all axes
    p = Size.symbol("p")
    body = (
        Load(0, Access(0, (-1, p, M * p), offset=p - 1), FLOAT64),
        Index(1, (N * M, N, 1), offset=5),
        Compute(2, parse("{0} + {T}({1})"), (0, 1), FLOAT64),
        Store(Access(1, (M * N, N, 1)), 2),
    )
    nest = Loop(0, (Loop(1, (Loop(2, body),)),))
    made = kernel((p, M, N), [("read", "f8"), ("write", "f8")], (nest,))
    x = RNG.normal(size=(4, 3, 5))
    y = np.zeros((5, 3, 4))
    BoundKernel(made, [x, y], {"n": 4, "m": 3, "p": 5}, per_chunk=2).run()
    flat = np.arange(60).reshape(5, 3, 4) + 5
    np.testing.assert_array_equal(y, x[:, :, ::-1].T + flat)


def test_in_place_update():
    body = (
        Load(0, Access(0, (1,)), FLOAT32),
        Load(1, Access(1, (1,)), FLOAT32),
        Compute(2, parse("{0} - {T}(0.5) * {1}"), (0, 1), FLOAT32),
        Store(Access(0, (1,)), 2),
    )
    made = kernel((N,), [("update", "f4"), ("read", "f4")], (Loop(0, body),))
    x, g = RNG.normal(size=(2, 100)).astype("f4")
    expected = x - np.float32(0.5) * g
    BoundKernel(made, [x, g], {"n": 100}).run()
    np.testing.assert_array_equal(x, expected)


def test_two_scratch_areas_do_not_overlap():
    areas = (Scratch(BOOL, N), Scratch(FLOAT64, 3), Scratch(FLOAT32, N))
    fill = (
        Number(0, True, BOOL),
        Number(1, 2.5, FLOAT32),
        Number(2, 7.5, FLOAT64),
        Store(Access(-1, (1,)), 0),
        Store(Access(-3, (1,)), 1),
        Store(Access(-2, (0,), 2), 2),
    )
    read = (
        Load(3, Access(-1, (1,)), BOOL),
        Load(4, Access(-3, (1,)), FLOAT32),
        Load(5, Access(-2, (0,), 2), FLOAT64),
        Compute(6, parse("{T}({0}) + {T}({1}) + {2}"), (3, 4, 5), FLOAT64),
        Store(Access(0, (1,)), 6),
    )
    made = kernel((N,), [("write", "f8")], (Loop(0, fill), Loop(0, read)), areas)
    assert scratch_bytes(made, 0, {"n": 65}) == 128 + 64 + 320
    y = np.zeros(65)
    BoundKernel(made, [y], {"n": 65}).run()
    np.testing.assert_array_equal(y, 11.0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sin_of_far_arguments_in_a_fused_loop(dtype):
    x = (RNG.normal(size=5000) * 10).astype(dtype)
    x[[3, 2000, 4999]] = [3e38, -1e30, np.inf]
    out = apply("sin({0}) * cos({0} + {T}(1))", x)
    with np.errstate(invalid="ignore"):
        wide = x.astype("f8")
        shifted = (x + x.dtype.type(1)).astype("f8")
        expected = np.sin(wide) * np.cos(shifted)
    tolerance = 1e-6 if dtype == "float32" else 1e-15
    np.testing.assert_allclose(out, expected, atol=tolerance)


def test_sin_in_place_reads_each_element_before_it_is_written():
    body = (
        Load(0, Access(0, (1,)), FLOAT32),
        Compute(1, parse("sin({0})"), (0,), FLOAT32),
        Store(Access(0, (1,)), 1),
        Load(2, Access(0, (1,)), FLOAT32),  # what has just been written
        Compute(3, parse("cos({0})"), (2,), FLOAT32),
        Store(Access(1, (1,)), 3),
    )
    made = kernel((N,), [("update", "f4"), ("write", "f4")], (Loop(0, body),))
    x = np.linspace(-9, 9, 3000, dtype="f4")
    x[7] = 1e30
    start, y = x.copy(), np.zeros_like(x)
    BoundKernel(made, [x, y], {"n": 3000}).run()
    np.testing.assert_allclose(x, np.sin(start.astype("f8")), atol=1e-6)
    np.testing.assert_allclose(y, np.cos(x), atol=1e-6)


def test_a_sum_of_sines_and_a_sine_per_row():
    body = (
        Load(0, Access(0, (M, 0)), FLOAT64),
        Compute(1, parse("cos({0})"), (0,), FLOAT64),
        Initial(2, "add", FLOAT64),
        Loop(
            1,
            (
                Load(3, Access(0, (M, 1)), FLOAT64),
                Compute(4, parse("sin({0}) + {1}"), (3, 1), FLOAT64),
                Accumulate(2, "add", 4, FLOAT64),
            ),
        ),
        Store(Access(1, (1, 0)), 2),
    )
    made = kernel((N, M), [("read", "f8"), ("write", "f8")], (Loop(0, body),))
    x = RNG.normal(size=(3, 2500)) * 100
    x[1, 2000] = 1e300
    y = np.zeros(3)
    BoundKernel(made, [x, y], {"n": 3, "m": 2500}).run()
    np.testing.assert_allclose(y, (np.sin(x) + np.cos(x[:, :1])).sum(1), rtol=1e-12)


def test_equal_kernels_have_equal_source_and_are_compiled_once():
    batch, width = Size.symbol("batch"), Size.symbol("width")
    twin = kernel(
        (batch,),
        [Operand(12, "read", FLOAT32), Operand(3, "write", FLOAT32)],
        (
            Loop(
                0,
                (
                    Load(90, Access(0, (width,)), FLOAT32),
                    Compute(91, parse("tanh({0})"), (90,), FLOAT32, site=0),
                    Store(Access(1, (1,)), 91),
                ),
            ),
        ),
        sites=(Site("tanh", Source("model.py", 3, "f")),),
        name="tanh_of_a_column",
    )
    body = (
        Load(0, Access(0, (M,)), FLOAT32),
        Compute(1, parse("tanh({0})"), (0,), FLOAT32),
        Store(Access(1, (1,)), 1),
    )
    other = kernel((N,), [("read", "f4"), ("write", "f4")], (Loop(0, body),))
    sources = [kernel_source(k).text for k in (twin, other)]
    assert sources[0] != sources[1]
    assert canonical(sources[0]) == canonical(sources[1])
    first, second = native([twin, other])
    assert first.address == second.address
    assert second.cached
    assert second.reason == "in memory"


def test_source_reads_like_a_program():
    source = kernel_source(gather()).text
    assert source == (
        "# kernel\n"
        "# i0: n\n"
        "# i1: m\n"
        "def kernel(operands, sizes, begin, end, context):\n"
        "    site = word(sizes, 1)\n"
        "    status = word(context, 0)\n"
        "    n0 = word(sizes, 2)  # m\n"
        '    p0 = operand(operands, 0, "float32", 0, 2)  # read\n'
        '    p1 = operand(operands, 1, "int64", 0, 2)  # read\n'
        '    p2 = operand(operands, 2, "float32", 1, 2)  # write\n'
        "    for i0 in range(begin, end):\n"
        "        v0 = load(p1, i0)\n"
        "        v1 = int64(i0)\n"
        "        v2 = check_index(v0, 10, v1, site + 0, status, True)"
        "  # take at train.py:41\n"
        "        for i1 in range(n0):\n"
        "            v3 = load(p0, i1 + v2 * n0)\n"
        "            store(p2, i0 * n0 + i1, v3)\n"
    )


def is_vectorised(made, mnemonics):
    """True if one of the packed instructions appears in the widest registers."""
    text = canonical(kernel_source(made).text)
    lines = numba_internals.assembly(ir_of(text, "kernel")).splitlines()
    name = {64: "zmm", 32: "ymm", 16: "xmm"}[vector_bytes()]
    return any(
        name in line and any(word in line.split()[0] for word in mnemonics)
        for line in lines
        if line.strip()
    )


def is_x86():
    return platform.machine() in ("x86_64", "AMD64")


if is_x86():

    @pytest.mark.parametrize("template", ["{0} * {0}", "absolute({0}) + {0}"])
    def test_elementwise_kernels_are_vectorised(template):
        made = elementwise(template, ["f4"], "f4")
        assert is_vectorised(made, ["mulps", "addps"])

    def test_sums_and_products_are_vectorised():
        assert is_vectorised(reduction("add", FLOAT32), ["addps"])
        assert is_vectorised(reduction("multiply", FLOAT64), ["mulpd"])

    def test_maxima_are_vectorised():
        assert is_vectorised(reduction("maximum", FLOAT32), ["pmaxs", "pcmpgt"])

    def test_column_sums_are_vectorised():
        assert is_vectorised(column_sums(), ["addps"])

    def test_integers_are_vectorised():
        made = elementwise("{0} + {1}", ["i4", "i4"], "i4")
        assert is_vectorised(made, ["paddd"])


if is_x86() and has_fma():

    def test_softmax_and_elementary_functions_are_vectorised():
        assert is_vectorised(row_softmax(), ["vfmadd", "vfnmadd"])
        for name in ("exp", "log1p", "tanh", "sin", "erf", "sigmoid"):
            for dtype in ("f4", "f8"):
                made = elementwise(f"{name}({{0}})", [dtype], dtype)
                assert is_vectorised(made, ["vfmadd", "vfnmadd"]), name


if is_x86() and has_fma() and "NUMBA_CPU_NAME" not in os.environ:

    @pytest.mark.slow
    @pytest.mark.parametrize("cpu", ["x86-64-v2", "haswell"])
    def test_kernels_on_older_processors(cpu):
        here = Path(__file__)
        names = ("test_kernels.py", "test_numbers.py", "test_math.py")
        files = [str(here.with_name(name)) for name in names]
        command = [sys.executable, "-m", "pytest", "-q", "-x", *files]
        environment = os.environ | {"NUMBA_CPU_NAME": cpu}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout[-3000:]
