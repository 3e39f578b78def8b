"""Expressions of the kernel language: what is read, replaced and written."""

import pytest

from staticgrad.ir.expression import (
    Apply,
    Arg,
    Literal,
    Name,
    filled,
    function_of,
    missing,
    parse,
    text,
    walk,
)
from staticgrad.ir.foreign import Foreign
from staticgrad.ir.op import OPS
from staticgrad.ir.size import Size


def shown(part):
    match part:
        case Arg(place):
            return f"x{place}"
        case Name(name):
            return name
        case Literal(value):
            return str(value)
        case Foreign(name):
            return name
    return part


def in_braces(part):
    leaf = isinstance(part, Arg | Name) or part in ("T", "S")
    word = shown(part).removeprefix("x") if isinstance(part, Arg) else shown(part)
    return f"{{{word}}}" if leaf else word


@pytest.mark.parametrize(
    ("template", "wanted"),
    [
        ("{0}", "x0"),
        ("{1} * {0} + {2}", "x1 * x0 + x2"),
        ("{1} * ({0} + {2})", "x1 * (x0 + x2)"),
        ("{0} - ({1} - {2})", "x0 - (x1 - x2)"),
        ("({0} - {1}) - {2}", "x0 - x1 - x2"),
        ("exp(-({0} * {0}))", "exp(-(x0 * x0))"),
        ("-{0} * {1}", "-x0 * x1"),
        ("{0} & 3 == {1}", "x0 & 3 == x1"),
        ("({0} == {1}) == {2}", "(x0 == x1) == x2"),
        ("({0} & 3) == {1} << 2", "x0 & 3 == x1 << 2"),
        ("select({0} == {T}(-1), {T}(nan), {1})", "select(x0 == T(-1), T(nan), x1)"),
        ("{T}(0.1) - {T}(-2.5e-08)", "T(0.1) - T(-2.5e-08)"),
    ],
)  # fmt: skip
def test_what_is_read_is_written_again(template, wanted):
    expr = parse(template)
    assert text(expr, shown) == wanted
    assert parse(template) is expr
    assert hash(expr) == hash(filled(expr, {}))
    assert expr == filled(expr, {})


@pytest.mark.parametrize(
    "template", ["{0}[1]", "f(x=1)", "{0} ** 2", "a.b({0})", "'a'"]
)
def test_what_is_no_expression(template):
    with pytest.raises(ValueError, match="no expression"):
        parse(template)


def test_numbers_are_equal_where_they_are_written_the_same():
    numbers = [parse(number) for number in ("0.0", "-0.0", "0", "1", "1.0", "True")]
    assert len(set(numbers)) == len(numbers)


def test_attributes_are_filled_in():
    expr = parse("word{bits}({0}, {T}({s}), {n}, {other})")
    size, function = Size.symbol("n"), Foreign("own", "digest", abs)
    found = filled(expr, {"bits": 32, "s": -0.5, "n": size, "unused": 1})
    assert isinstance(found, Apply)
    assert found.name == "word32"
    assert found.args[1:3] == (Apply("T", (Literal("-0.5"),)), Literal(size))
    assert missing(found, 1) == "other"
    assert missing(filled(found, {"other": True}), 1) == ""
    assert filled(found, {"other": Arg(3)}).args[3] == Arg(3)
    assert filled(parse("{function}({0})"), {"function": function}) == Apply(
        function, (Arg(0),)
    )
    assert missing(expr, 1) == "bits"
    assert missing(parse("{0} + {1}"), 1) == "1"


def test_a_function_of_all_arguments():
    assert function_of(parse("select({0}, {1}, {2})")) == "select"
    assert function_of(parse("{0} == {1}")) == "=="
    for other in ("{0}", "{0} + {0}", "exp({0} + {1})", "{1} - {0}", "f({0}, 1)"):
        assert function_of(parse(other)) == ""


def test_the_formulas_of_all_ops_are_read_and_complete_but_for_attributes():
    formulas = [op.code.expr for op in OPS.values() if hasattr(op.code, "expr")]
    assert len(formulas) > 80
    for expr in formulas:
        names = {part.name for part in walk(expr) if isinstance(part, Name)}
        assert names <= {"s", "k0", "k1", "k2", "k3", "i"}
        assert parse(text(expr, in_braces)) == expr
