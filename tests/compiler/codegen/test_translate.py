"""Is kernel source that is translated to LLVM IR the same as Numba's compilation of it?

Every kernel below is compiled both ways and run on the same memory. Sums may differ in
the last bits, because LLVM may add in another order; everything else is equal.
"""

import ctypes
from dataclasses import replace

import numpy as np
import pytest

import staticgrad as sg
from staticgrad.compiler.codegen import call_kernel as calling
from staticgrad.compiler.codegen import native_compile
from staticgrad.compiler.codegen.call_kernel import BoundKernel
from staticgrad.compiler.codegen.kernel_source import NativeKernel, form_of
from staticgrad.compiler.codegen.llvm.typed import Unsupported
from staticgrad.compiler.codegen.loops.loop_source import kernel_source
from staticgrad.compiler.codegen.text_emitter import canonical
from staticgrad.compiler.codegen.tiles.product_tiles import LONG_ROWS, plan_of
from staticgrad.compiler.gemm import tile_driver
from staticgrad.compiler.host import numba_internals as internals
from staticgrad.compiler.kernel_ir.combine_partials import loop_of
from staticgrad.compiler.kernel_ir.kernels import (
    Access,
    Compute,
    FinishKernel,
    Loop,
    LoopKernel,
    Number,
    Operand,
    Store,
    Tiles,
)
from staticgrad.compiler.runtime import thread_pool, vm
from staticgrad.ir.expression import parse
from staticgrad.ir.size import evaluate

SIZES = {"n": 37, "m": 20, "extent": 37, "chunks": 3}
ROUNDING = {np.dtype("float32"): 1e-5, np.dtype("float64"): 1e-13}


def mixed_types(x, y, i, c):
    """Conversions, integers, bits, comparisons and selections."""
    j = i.astype("int32") * 3 - (i // 7) % 5
    bits = (j << 2) ^ (j >> 1) | 5
    flags = (x < y) & c | sg.isnan(y)
    wide = x.astype("float64") ** 3 + i
    narrow = i.astype("int8") + (x > 0).astype("int8")
    return sg.where(flags, x, -y), bits, wide, narrow, sg.sign(i) + sg.abs(j)


def functions(x, y, i, c):
    """Elementary functions, with the guards of sin and cos, near and far."""
    far = sg.sin(x * 1e9) + sg.cos(y)
    near = sg.sin(sg.tanh(x)) * sg.exp(-y * y)
    return far, near, sg.log1p(sg.abs(x)), sg.softplus(x) * sg.sigmoid(y), x / y


def reductions(x, y, i, c):
    """Registers of every kind, along rows and along columns."""
    return (
        sg.sum(x * y, axis=1), sg.max(x, axis=0), sg.min(y, axis=1), sg.sum(x),
        sg.any(c, axis=1), sg.all(c, axis=0), sg.prod(x, axis=1), sg.sum(i, axis=1),
    )  # fmt: skip


def rows(x, y, i, c):
    """Scratch rows, gathers with checked indices, picked elements."""
    labels = i[:, 0] % 20
    picked = x[:, i[0] % 20]
    return sg.nn.cross_entropy(x, labels), sg.nn.softmax(y, axis=1), picked


def chain(x, y, i, c):
    """A body that runs in pieces, in blocks."""
    for _ in range(12):
        x = sg.tanh(x) * 0.9 + 0.1
    return x


def draws(x, y, i, c):
    """Random numbers."""
    return sg.random.uniform(sg.random.key(3), (40, 20)) * x


GRAPHS = (mixed_types, functions, reductions, rows, chain, draws)


def kernels_of(build, shape):
    """The loops of a graph and of its gradient."""
    with sg.Graph():
        x, y = sg.input("x", shape), sg.input("y", shape)
        i, c = sg.input("i", shape, dtype="int64"), sg.input("c", shape, dtype="bool")
        found = build(x, y, i, c)
        outputs = found if isinstance(found, tuple) else (found,)
        floats = [t for t in outputs if t.dtype.kind == "f"]
        total = sum(sg.sum(t.astype("float64")) for t in floats)
        gradient = sg.grad(total, [x, y], unused="zero")
        f = sg.compile((outputs, gradient), inputs=[x, y, i, c])
    kernels = (
        loop_of(k) if isinstance(k, FinishKernel) else k
        for k in f.target.code.schedule.kernels
    )
    return [kernel for kernel in kernels if isinstance(kernel, LoopKernel)]


def extent_of(kernel, number):
    """Return the size of an operand: the largest index that any access has."""
    most = 1
    for statement in statements(kernel.body):
        access = getattr(statement, "access", None)
        if access is None or access.operand != number:
            continue
        last = evaluate(access.offset, SIZES)
        for stride, axis in zip(access.strides, kernel.axes, strict=True):
            last += max(evaluate(stride, SIZES) * (evaluate(axis, SIZES) - 1), 0)
        if access.dynamic is not None:
            last += 40 * evaluate(access.dynamic[1], SIZES)
        most = max(most, last + 1)
    return most


def statements(body):
    for statement in body:
        yield statement
        yield from statements(getattr(statement, "body", ()))


def memory_of(kernel):
    """Numbers for every operand: ordinary ones, and some that are not."""
    rng = np.random.default_rng(0)
    arrays = []
    for number, operand in enumerate(kernel.operands):
        size = extent_of(kernel, number)
        values = rng.standard_normal(size) * 4
        if operand.dtype.kind == "f":
            values[rng.integers(0, size, 2)] = np.nan, -np.inf
        arrays.append(np.resize(values, size).astype(operand.dtype))
        if operand.dtype.kind in "iu":
            arrays[-1] = rng.integers(0, 19, size).astype(operand.dtype)
    return arrays


def run(kernel, compiled, monkeypatch, arrays=None):
    """The operands after a run, and what was reported."""

    def use(kernels):
        return [
            NativeKernel(
                k, compiled.address, (), False, 0.0, "", kernel_source(k).areas
            )
            for k in kernels
        ]

    monkeypatch.setattr(calling, "native", use)
    arrays = memory_of(kernel) if arrays is None else arrays
    call = BoundKernel(kernel, arrays, SIZES).run()
    return arrays, call.status


def equal(kernel, first, second):
    adds = any(getattr(s, "combine", None) for s in statements(kernel.body))
    for x, y in zip(first, second, strict=True):
        if adds and x.dtype.kind == "f":
            rounding = ROUNDING[x.dtype]
            np.testing.assert_allclose(x, y, rtol=rounding, atol=rounding)
        else:
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("shape", [(40, 20), ("n", "m")], ids=["literal", "symbols"])
@pytest.mark.parametrize("build", GRAPHS, ids=lambda build: build.__name__)
def test_both_ways_do_the_same(build, shape, monkeypatch):
    if build in (rows, draws) and shape != (40, 20):
        shape = ("n", 20) if build is rows else (40, 20)
    for number, kernel in enumerate(kernels_of(build, shape)):
        text = canonical(kernel_source(kernel).text)
        key = f"{number:024}"
        ours = native_compile.compiled(text, f"t{key}")
        assert isinstance(ours, internals.Linked), text
        theirs = native_compile.compiled_by_numba(
            native_compile.python_function(text), f"n{key}"
        )
        with np.errstate(all="ignore"):
            first, status = run(kernel, ours, monkeypatch)
            second, expected = run(kernel, theirs, monkeypatch)
        equal(kernel, first, second)
        np.testing.assert_array_equal(status, expected)


def convolved():
    """Rows, 3 x 3 by transformed tiles, and copies that turn axes."""
    x, w = sg.input("x", (2, 16, 12, 12)), sg.input("w", (16, 16, 3, 3))
    y = sg.nn.conv2d(x, w, padding="same")
    outputs = [sg.transpose(y, (0, 2, 3, 1)), sg.nn.conv2d(x, w[:, :, :1, :1])]
    f = sg.compile(outputs, inputs=[x, w])
    f(np.ones(x.shape, np.float32), np.ones(w.shape, np.float32))
    return f


def updated():
    """A product and what follows it, where registers have 64 bytes."""
    x, w = sg.input("x", (128, 120)), sg.input("w", (120, 128))
    f = sg.compile(sg.tanh(x @ w) * 2, inputs=[x, w])
    f(np.ones(x.shape, np.float32), np.ones(w.shape, np.float32))
    return f


def kernels_with_tiles(f):
    kernels = f.memory.plan.schedule.kernels
    loops = [k for k in kernels if isinstance(k, LoopKernel)]
    return [k for k in loops if any(isinstance(s, Tiles) for s in k.body)]


@pytest.mark.parametrize("build", [convolved, updated])
def test_tiles_are_the_same_both_ways(build, monkeypatch):
    found = kernels_with_tiles(build())
    assert found or (build is updated and plan_of().rows != LONG_ROWS)
    for number, kernel in enumerate(found):
        text = canonical(kernel_source(kernel).text)
        ours = native_compile.compiled(text, f"u{number:024}")
        assert isinstance(ours, internals.Linked), text
        function = native_compile.python_function(text)
        theirs = native_compile.compiled_by_numba(function, f"v{number:024}")
        results = [
            run(kernel, made, monkeypatch, reached(kernel))[0]
            for made in (ours, theirs)
        ]
        for x, y in zip(*results, strict=True):
            np.testing.assert_array_equal(x, y)


def reached(kernel):
    """Positive numbers for all that the tiles of a kernel touch."""
    (tiles,), rng = kernel.body, np.random.default_rng(0)
    arrays = []
    for operand, reach in zip(kernel.operands, tiles.reaches, strict=True):
        far = reach.step * (kernel.axes[0] - 1)
        numbers = rng.random(1 + reach.last + max(far, 0))
        arrays.append(numbers.astype(operand.dtype))
    return arrays


HEAD = "def kernel(operands, sizes, begin, end, context):\n"
STORE = '    p0 = operand(operands, 0, "int64", 0, 1)\n    store(p0, 0, {})\n'


def stored(lines):
    """Return the last value that source stores, compiled both ways."""
    text = HEAD + lines
    results = []
    for make in (
        native_compile.compiled,
        lambda text, key: native_compile.compiled_by_numba(
            native_compile.python_function(text), key
        ),
    ):
        cell = np.zeros(1, np.int64)
        table = np.array([cell.ctypes.data], np.int64)
        made = make(text, f"s{abs(hash(text)):030}")
        call = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 5)(made.address)
        call(table.ctypes.data, 0, 3, 9, 0)
        results.append(int(cell[0]))
    assert results[0] == results[1]
    return results[0]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("    x = 0\n    for i in range(begin, end):\n        x += i\n", 33),
        ("    x = 0\n    for i in range(end, begin):\n        x += i\n", 0),
        ("    x = 0\n    for i in range(0, end, 4):\n        x = x * 10 + i\n", 48),
        ("    x = 1\n    while x < end:\n        x += x\n", 16),
        ("    x = -begin * 2 & -4\n", -8),
        ("    x = end // begin + end % 4\n", 4),
        ("    x = 5 if begin < end and begin == 3 else 6\n", 5),
        ("    if begin > end:\n        x = 1\n    else:\n        x = 2\n", 2),
        ("    x, y = begin, end\n    x = x - y\n", -6),
        ("    x = min(begin, end, 2) + max(begin, end) * 10\n", 92),
        ("    x = int64(float32(0.1) * float32(30))\n", 3),
        ("    x = int64(begin * 0.5)\n", 1),
        (
            "    x = 0\n    for i in range(end, begin, -2):\n        x = x * 10 + i\n",
            975,
        ),
        ("    x = 0\n    while not x > end or x == 10:\n        x += 5\n", 15),
        ("    x = 7 if begin > 0 or begin // 0 else 8\n", 7),
        ("    x = end << 3 >> 1 | 1 ^ begin\n", 38),
        ("    x = begin if end else int32(end)\n", 3),
        ("    x = int64(begin / 2.0)\n", 1),
    ],
)
def test_statements(lines, expected):
    assert stored(lines + STORE.format("x")) == expected


@pytest.mark.parametrize(
    "lines",
    [
        "    x = [begin]\n",
        "    x = begin\n    x = float32(begin)\n",
        "    for i in range(0, 9, begin):\n        x = i\n",
        "    x = undefined(begin)\n",
        "    x = missing\n",
        "    x = begin ** end\n",
        "    with begin:\n        pass\n",
    ],
)
def test_what_is_not_in_the_language_is_refused(lines):
    with pytest.raises(Unsupported):
        native_compile.ir_of(HEAD + lines, "kernel")


def test_what_is_refused_is_compiled_by_numba():
    lines = "    x = begin ** 2\n" + STORE.format("x")
    text = HEAD + lines
    with pytest.raises(Unsupported):
        native_compile.ir_of(text, "kernel")
    assert stored(lines) == 9


@pytest.mark.parametrize(
    "function", [vm._machine, thread_pool._launch, thread_pool._work, tile_driver._gemm]
)
def test_what_serves_all_graphs_is_translated(function):
    """Numba would take seconds for it, which nobody would notice but users."""
    assert "define" in native_compile.ir_of(function, "kernel").text


def test_what_decides_first_ends_the_evaluation():
    """The second condition would have an effect."""
    lines = (
        '    p0 = operand(operands, 0, "int64", 0, 1)\n'
        "    store(p0, 0, 5)\n"
        "    status = word(operands, 0)\n"
        "    x = 1\n"
        "    if begin > end and check_index(9, 3, 0, 0, status, False) == 0:\n"
        "        x = 2\n"
        "    store(p0, 0, load(p0, 0) * 10 + x)\n"
    )
    assert stored(lines) == 51


def one_number(value, expr="absolute({0})"):
    body = (
        Number(0, value, np.dtype("float32")),
        Compute(1, parse(expr), (0,), np.dtype("float32")),
        Loop(0, (Store(Access(0, (1,)), 1),)),
    )
    operand = Operand(0, "write", np.dtype("float32"))
    return LoopKernel("name", (4,), (operand,), (), body, (), 1)


def test_forms_are_equal_where_sources_are():
    forms = [form_of(one_number(value)) for value in (0.0, -0.0, 1.0, 1, True)]
    assert len(set(forms)) == len(forms)
    again = replace(one_number(1.0), name="other", operands=(
        replace(one_number(1.0).operands[0], buffer=7),
    ))  # fmt: skip
    assert form_of(again) == form_of(one_number(1.0))
    numbers = [f"{{T}}({value})" for value in (1, 1.0, True, 0.0, -0.0)]
    assert len({form_of(one_number(1.0, found)) for found in numbers}) == len(numbers)


@pytest.mark.parametrize("build", GRAPHS, ids=lambda build: build.__name__)
def test_kernels_of_one_form_have_one_source(build):
    texts = {}
    for kernel in kernels_of(build, (40, 20)):
        text = canonical(kernel_source(kernel).text)
        assert texts.setdefault(form_of(kernel), text) == text


def test_the_machine_is_in_the_language():
    module = native_compile.ir_of(vm._machine, "machine")
    assert internals.compile_module(module).code
