"""Do conversions, arithmetic and division in kernels agree with NumPy's?"""

import inspect

import numpy as np
import pytest
from cuda_emulator import LIBDEVICE
from handwritten import apply

from staticgrad import ops
from staticgrad.compiler.codegen.language import (
    SCALAR_FUNCTIONS,
    inside,
    namespace,
    stored_name,
)
from staticgrad.compiler.codegen.llvm.intrinsics import taking
from staticgrad.compiler.codegen.scalar_functions import OWN, ScalarFunction, table
from staticgrad.compiler.cuda.source.expression_text import of_kind
from staticgrad.compiler.cuda.source.function_text import written
from staticgrad.compiler.cuda.source.operator_text import SIMPLE
from staticgrad.compiler.host import numba_internals
from staticgrad.errors import CompilerBug
from staticgrad.ir.expression import PRECEDENCE, Apply, Arg, walk
from staticgrad.ir.op import OPS
from staticgrad.ir.types import BOOL, INT32, SUPPORTED, is_float

RNG = np.random.default_rng(5)
COMPARISONS = {
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
    "==": np.equal,
    "!=": np.not_equal,
}


@pytest.mark.parametrize("dtype", sorted(SUPPORTED, key=str), ids=str)
def test_every_dtype_is_loaded_stored_and_converted(dtype):
    x = np.array([0, 1, 2, 100, 1, 0, 7]).astype(dtype)
    for other in SUPPORTED:
        out = apply("{T}({0})", x, result=other)
        np.testing.assert_array_equal(out, x.astype(other))


@pytest.mark.parametrize("dtype", sorted(SUPPORTED - {BOOL}, key=str), ids=str)
def test_arithmetic_wraps_and_compares_in_its_own_dtype(dtype):
    if is_float(dtype):
        x, y = RNG.normal(size=(2, 100)).astype(dtype)
    else:
        info = np.iinfo(dtype)
        x, y = RNG.integers(info.min, info.max, (2, 100), dtype, endpoint=True)
    x[:10] = y[:10]
    np.testing.assert_array_equal(apply("{0} + {1}", x, y), x + y)
    np.testing.assert_array_equal(apply("{0} - {1}", x, y), x - y)
    np.testing.assert_array_equal(apply("{0} * {1}", x, y), x * y)
    np.testing.assert_array_equal(apply("negative({0})", x), -x)
    np.testing.assert_array_equal(apply("absolute({0})", x), abs(x))
    np.testing.assert_array_equal(apply("sign({0})", x), np.sign(x))
    np.testing.assert_array_equal(apply("maximum({0}, {1})", x, y), np.maximum(x, y))
    np.testing.assert_array_equal(apply("minimum({0}, {1})", x, y), np.minimum(x, y))
    for sign, function in COMPARISONS.items():
        out = apply(f"{{0}} {sign} {{1}}", x, y, result=BOOL)
        np.testing.assert_array_equal(out, function(x, y))


def test_bools():
    x = np.array([False, False, True, True])
    y = np.array([False, True, False, True])
    np.testing.assert_array_equal(apply("c_and({0}, {1})", x, y), x & y)
    np.testing.assert_array_equal(apply("c_or({0}, {1})", x, y), x | y)
    np.testing.assert_array_equal(apply("c_xor({0}, {1})", x, y), x ^ y)
    np.testing.assert_array_equal(apply("c_not({0})", x), ~x)
    np.testing.assert_array_equal(apply("maximum({0}, {1})", x, y), x | y)
    np.testing.assert_array_equal(apply("{0} == {1}", x, y), x == y)
    np.testing.assert_array_equal(apply("{0} < {1}", x, y), x < y)
    np.testing.assert_array_equal(apply("absolute({0})", x), x)
    # a byte that is neither 0 nor 1 counts as true
    odd = np.array([0, 1, 2, 255], np.uint8).view(np.bool_)
    out = apply("{T}({0})", odd, result=INT32)
    np.testing.assert_array_equal(out, [0, 1, 1, 1])


def test_select_and_predicates():
    x = np.array([1.0, -np.inf, np.nan, 0.0, np.inf], "f4")
    c = np.array([True, False, True, False, True])
    out = apply("select({1}, {0}, {T}(nan))", x, c)
    np.testing.assert_array_equal(out, np.where(c, x, np.float32(np.nan)))
    for name in ("isnan", "isinf", "isfinite"):
        out = apply(f"{name}({{0}})", x, result=BOOL)
        np.testing.assert_array_equal(out, getattr(np, name)(x))


def test_maximum_and_minimum_pass_nan_on():
    x = np.array([np.nan, 1.0, np.nan, -np.inf, 2.0], "f8")
    y = np.array([1.0, np.nan, np.nan, 3.0, np.inf], "f8")
    np.testing.assert_array_equal(apply("maximum({0}, {1})", x, y), np.maximum(x, y))
    np.testing.assert_array_equal(apply("minimum({0}, {1})", x, y), np.minimum(x, y))


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "uint64"])
def test_integer_division_never_traps(dtype):
    info = np.iinfo(dtype)
    edge = np.array([info.min, info.min + 1, 0, 1, 3, 7, info.max], dtype)
    edge = np.concatenate([edge, -edge])
    x, y = (a.ravel() for a in np.meshgrid(edge, edge))
    with np.errstate(all="ignore"):
        quotient, remainder = np.floor_divide(x, y), np.remainder(x, y)
    np.testing.assert_array_equal(apply("floor_divide({0}, {1})", x, y), quotient)
    np.testing.assert_array_equal(apply("remainder({0}, {1})", x, y), remainder)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_float_division_follows_numpy(dtype):
    edge = [0.0, -0.0, 1.0, -1.0, 0.3, 7.5, -2.5, 1e30, np.inf, -np.inf, np.nan]
    x, y = (a.ravel() for a in np.meshgrid(*[np.array(edge, dtype)] * 2))
    with np.errstate(all="ignore"):
        expected = {
            "divide": x / y,
            "floor_divide": np.floor_divide(x, y),
            "remainder": np.remainder(x, y),
        }
    for name, value in expected.items():
        out = apply(f"{name}({{0}}, {{1}})", x, y)
        np.testing.assert_array_equal(out, value, err_msg=name)
        finite = ~np.isnan(value)
        np.testing.assert_array_equal(
            np.signbit(out)[finite], np.signbit(value)[finite], err_msg=name
        )


@pytest.mark.parametrize("dtype", ["int8", "int64", "uint32"])
def test_integer_powers(dtype):
    x, y = (a.ravel() for a in np.meshgrid(*[np.arange(11).astype(dtype)] * 2))
    x = (x - 5).astype(dtype)
    out = apply("ipower({0}, {1})", x, y)
    np.testing.assert_array_equal(out, np.power(x, y))


def test_integer_powers_with_negative_exponents():
    x = np.array([1, -1, -1, 2, -3, 0], "i8")
    y = np.array([-5, -5, -4, -1, -2, -1], "i8")
    out = apply("ipower({0}, {1})", x, y)
    np.testing.assert_array_equal(out, [1, -1, 1, 0, 0, 0])


def test_floats_that_do_not_fit_convert_as_cvtt_does():
    x = np.array([np.nan, np.inf, -np.inf, 1e30, -3.7, 2.9, 2.0**31], "f8")
    least = np.iinfo("i4").min
    out = apply("{T}({0})", x, result="i4")
    np.testing.assert_array_equal(out, [least, least, least, least, -3, 2, least])
    least = np.iinfo("i8").min
    out = apply("{T}({0})", x, result="i8")
    np.testing.assert_array_equal(out, [least, least, least, least, -3, 2, 2**31])
    out = apply("{T}({0})", np.array([2.0**63 * 1.5, -1.0, 5.5]), result="u8")
    np.testing.assert_array_equal(out, [2**63 + 2**62, 2**64 - 1, 5])


def test_templates_of_all_ops_use_names_of_the_kernel_language():
    assert ops.exp is not None
    called = {
        part.name.replace("{bits}", "32")
        for op in OPS.values()
        for part in walk(getattr(op.code, "expr", Arg(0)))
        if isinstance(part, Apply) and part.name not in (*PRECEDENCE, "T", "S")
    }
    assert "exp" in called
    assert called - {"{function}"} <= set(SCALAR_FUNCTIONS) <= set(namespace())


NO_CUDA = {"accumulate_multiply", "multiply_add", "sin_any", "cos_any", "tan_any"}


def test_every_function_of_the_language_has_all_that_is_asked_of_it():
    for name, function in SCALAR_FUNCTIONS.items():
        assert function.name == name
        assert function.operations >= 0
        assert function.bound([1.0, 2.0, 3.0]) >= 1.0
        assert numba_internals.definition_of(function.make()) is not None
        assert (function.cuda is None) == (name in NO_CUDA)
        assert function.cuda != OWN or has_own_text(name), name
        assert function.cuda in (None, OWN) or hasattr(LIBDEVICE, function.cuda), name


def has_own_text(name):
    kinds = [of for dtype in SUPPORTED for of in of_kind(name, dtype)]
    types = map(stored_name, SUPPORTED)
    written_out = {*SIMPLE, *written(), *types, "select", "divide"}
    return not written_out.isdisjoint([name, *kinds])


def test_two_functions_of_one_name_are_refused():
    row = SCALAR_FUNCTIONS["exp"]
    with pytest.raises(CompilerBug, match="one name"):
        table(row, row)
    with pytest.raises(TypeError, match="bound"):
        ScalarFunction("own", row.make, OWN, 1)


def test_numba_sees_how_many_arguments_an_intrinsic_takes():
    seven = taking(7, lambda typing, *kinds: None)
    for made, count in ((inside, 2), (seven, 7), (SCALAR_FUNCTIONS["exp"].make(), 1)):
        definition, _ = numba_internals.definition_of(made)
        assert len(inspect.signature(definition).parameters) == 1 + count
