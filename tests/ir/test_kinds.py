"""Every kind of operation has its record, and its rule in every table of rules.

A kind that a table leaves out is one that its stage never meets: it has no inputs, no
derivative, or is gone before.
"""

from typing import get_args

import pytest

from staticgrad.compiler.lower import control_kernels, lower, materialise
from staticgrad.differentiate import forward, forward_control, reverse_control
from staticgrad.ir import op
from staticgrad.ir.kind import Kind, Reads, Tangent
from staticgrad.ir.op import OPS
from staticgrad.pictures.palette import BOXES
from staticgrad.sparse import dependence
from staticgrad.vectorize import batch_rules, control_rules

ABSTRACT = {op.Code, op.Formula}
CODES = [
    c
    for c in vars(op).values()
    if isinstance(c, type) and issubclass(c, op.Code) and c not in ABSTRACT
]
LEAVES = {op.Leaf, op.Position, op.Extent}


@pytest.mark.parametrize("code", CODES)
def test_a_kind_has_a_record_of_known_words(code):
    assert isinstance(code.kind, Kind)
    assert code.kind.picture in BOXES or code is op.Leaf
    assert code.kind.tangent in get_args(Tangent)
    assert code.kind.reads
    assert set(code.kind.reads) <= set(get_args(Reads))
    assert "kind" in vars(code), "a record of its own"


def test_all_words_have_rules():
    assert {*forward.RULES, "transposed"} == set(get_args(Tangent))
    assert set(materialise.FITS) == set(get_args(Reads))


def test_what_is_not_fused_has_kernels():
    gone = {op.Mode, op.Pool}  # by resolve_mode.py and unroll_windows.py
    fused = {c for c in CODES if c.kind.fused or c.kind.is_view}
    assert set(lower.KERNELS) == set(CODES) - LEAVES - fused - gone


def test_every_kind_with_inputs_can_be_batched():
    nested = {op.Control}  # control_rules.py
    assert set(batch_rules.RULES) == set(CODES) - LEAVES - nested


def test_every_kind_that_can_have_a_derivative_has_a_pattern():
    none = {op.IndexCheck, op.Shuffle}
    several = {op.Select}  # results, whose pattern is full
    assert set(dependence.RULES) == set(CODES) - LEAVES - none - several
    codes = [type(r.code) for r in OPS.values() if r.vjp is not None and r.outputs == 1]
    assert set(codes) - {op.Leaf} <= set(dependence.RULES)


def test_every_form_of_control_has_rules():
    assert set(control_kernels.FORMS) == set(get_args(op.ControlForm))
    names = {r.name for r in OPS.values() if isinstance(r.code, op.Control)}
    assert {OPS[name].code.form for name in names} == set(get_args(op.ControlForm))
    for module in (control_rules, reverse_control, forward_control):
        assert set(module.RULES) == names
