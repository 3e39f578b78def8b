"""verify_schedule accepts valid Schedules and notices whatever is corrupted in one."""

import random
from dataclasses import replace

import numpy as np
import pytest
from random_schedules import F32, SITE, Builder, parameter, random_schedule

from staticgrad.compiler.kernel_ir.kernels import (
    Access,
    Accumulate,
    CheckIndex,
    Compute,
    Index,
    Initial,
    Load,
    Loop,
    LoopKernel,
    Number,
    Operand,
    Scratch,
    Store,
    When,
)
from staticgrad.compiler.verify.verify_schedule import verify_schedule
from staticgrad.errors import CompilerBug
from staticgrad.ir.expression import parse
from staticgrad.ir.size import Size

F64 = np.dtype(np.float64)
I64 = np.dtype(np.int64)
F16 = np.dtype(np.float16)
X, W, A, SLOTS, TOTAL, OUT = range(6)
ADD, SUM, FINISH, WRITE, UPDATE = range(5)


def example():
    """a = x + w; total = sum(a); out = a; commit; w += a."""
    b = Builder()
    x = b.buffer("input", (100,), position=0)
    w = b.buffer("stored", (100,), leaf=parameter("w", np.zeros(100, np.float32)))
    a = b.buffer("temporary", (100,))
    slots, total = b.buffer("slots", ()), b.buffer("temporary", ())
    out = b.buffer("output", (100,), position=0)
    b.elementwise([x, w], a)
    b.reduce(a, slots, total)
    b.elementwise([a], out)
    b.elementwise([a], w, "update")
    return b.schedule(4, (out,), (total,))


GOOD = example()


def changed(values, index, value):
    return (*values[:index], value, *values[index + 1 :])


def with_kernel(index, **fields):
    kernel = replace(GOOD.kernels[index], **fields)
    return replace(GOOD, kernels=changed(GOOD.kernels, index, kernel))


def with_buffer(index, **fields):
    buffer = replace(GOOD.buffers[index], **fields)
    return replace(GOOD, buffers=changed(GOOD.buffers, index, buffer))


def with_operand(kernel, index, **fields):
    operands = GOOD.kernels[kernel].operands
    operand = replace(operands[index], **fields)
    return with_kernel(kernel, operands=changed(operands, index, operand))


def assert_noticed(broken, match):
    with pytest.raises(CompilerBug, match=match):
        verify_schedule(broken)


def test_valid_ones_pass():
    verify_schedule(GOOD)
    rng = random.Random(0)
    for _ in range(30):
        verify_schedule(random_schedule(rng, rng.randint(0, 40)))


# Buffers


def test_a_wrong_number():
    assert_noticed(with_buffer(A, number=7), "buffer 2 has number 7")


def test_a_buffer_that_does_not_exist():
    assert_noticed(with_operand(ADD, 0, buffer=17), "operand 0 is buffer 17")
    assert_noticed(replace(GOOD, outputs=(17,)), "output is buffer 17")
    assert_noticed(replace(GOOD, finite=(-1,)), "finite is buffer -1")


def test_a_wrong_dtype():
    assert_noticed(with_buffer(A, dtype=F64), "operand 2 is float32, buffer 2 is")
    assert_noticed(with_operand(WRITE, 0, dtype=F64), "operand 0 is float64")


def test_missing_leaf_or_value():
    assert_noticed(with_buffer(W, leaf=None), "no leaf")
    assert_noticed(with_buffer(A, kind="constant"), "no value")


def test_positions():
    assert_noticed(with_buffer(OUT, position=-1), "two buffers for output -1, or none")
    assert_noticed(with_buffer(OUT, position=1), "output 1 is not buffer 5")
    assert_noticed(replace(GOOD, outputs=(A,)), "output 0 is not buffer 5")


def test_two_buffers_for_one_leaf():
    again = replace(GOOD.buffers[W], number=6)
    assert_noticed(replace(GOOD, buffers=(*GOOD.buffers, again)), "two buffers for the")


def test_a_finite_buffer_that_is_no_scalar():
    assert_noticed(replace(GOOD, finite=(A,)), "not a float scalar")


# Order


def swapped(one, other):
    kernels = list(GOOD.kernels)
    kernels[one], kernels[other] = kernels[other], kernels[one]
    return replace(GOOD, kernels=tuple(kernels))


def test_a_read_before_the_write():
    assert_noticed(swapped(ADD, WRITE), "position 0: kernel add reads buffer 2 before")


def test_a_missing_write():
    assert_noticed(with_operand(WRITE, 1, buffer=A), "two operands for buffer 2")
    kernels = (*GOOD.kernels[:WRITE], GOOD.kernels[UPDATE])
    broken = replace(GOOD, kernels=kernels, commit=3)
    assert_noticed(broken, "output buffer 5 is never written")


def test_a_write_into_an_input_or_constant():
    assert_noticed(with_operand(WRITE, 1, buffer=X), "writes input buffer 0")
    value = np.zeros(100, np.float32)
    broken = with_buffer(OUT, kind="constant", value=value)
    assert_noticed(broken, "writes constant buffer 5")


# Commit rule


def test_a_leaf_written_before_the_commit():
    assert_noticed(replace(GOOD, commit=5), "writes stored buffer 1 before the commit")


def test_a_kernel_that_fails_after_the_commit():
    assert_noticed(with_kernel(UPDATE, fails=True), "can fail after the commit at 4")
    verify_schedule(with_kernel(WRITE, fails=True))


def test_a_commit_outside_of_the_schedule():
    assert_noticed(replace(GOOD, commit=-1), "commit at -1")
    assert_noticed(replace(GOOD, commit=6), "commit at 6")


def test_a_finite_buffer_written_after_the_commit():
    assert_noticed(replace(GOOD, commit=2), "buffer 4 is checked at commit")


def test_an_old_value_read_after_it_is_overwritten():
    kernels = (*GOOD.kernels, GOOD.kernels[ADD])
    assert_noticed(replace(GOOD, kernels=kernels), "stored buffer 1, already overwr")
    kernels = (*GOOD.kernels, GOOD.kernels[UPDATE])
    assert_noticed(replace(GOOD, kernels=kernels), "stored buffer 1, already overwr")


def test_an_output_that_is_an_overwritten_leaf():
    assert_noticed(replace(GOOD, outputs=(OUT, W)), "output is stored buffer 1")


# Slots


def test_slots_that_are_never_finished():
    kernels = GOOD.kernels[:FINISH] + GOOD.kernels[WRITE:]
    broken = replace(GOOD, kernels=kernels, commit=3, finite=())
    assert_noticed(broken, "slots 3 are never finished")


def test_a_finish_of_the_wrong_kernel():
    assert_noticed(with_kernel(FINISH, chunks_of=ADD), "finishes slots 3 of kernel 0")
    assert_noticed(with_kernel(FINISH, chunks_of=-1), "finishes slots 3 of kernel -1")
    assert_noticed(with_kernel(FINISH, chunks_of=FINISH), "slots 3 of kernel 2")


def test_a_finish_of_what_has_no_slots():
    assert_noticed(with_operand(FINISH, 0, buffer=A), "buffer 2, which has no slots")
    assert_noticed(with_operand(SUM, 1, per_chunk=False), "do not go together|all chun")


def test_a_finish_of_another_size():
    assert_noticed(with_kernel(FINISH, extent=2), "differ: 2, 1, 1")
    assert_noticed(with_operand(SUM, 1, slot=2), "slots of 2 elements, not 1")


def test_a_finish_of_another_dtype():
    assert_noticed(with_kernel(FINISH, dtype=F64), "combines float64")


def test_slots_finished_twice():
    again = replace(GOOD.kernels[FINISH], chunks_of=SUM)
    kernels = (*GOOD.kernels[:WRITE], again, *GOOD.kernels[WRITE:])
    assert_noticed(replace(GOOD, kernels=kernels, commit=5), "3 a second time")


def test_a_result_used_between_slots_and_finish():
    b = Builder()
    x = b.buffer("input", (100,), position=0)
    total, other = b.buffer("temporary", ()), b.buffer("temporary", ())
    b.elementwise([], total)
    slots = b.buffer("slots", ())
    b.reduce(x, slots, total)
    verify_schedule(b.schedule())
    b.elementwise([total], other)
    finish = b.kernels.pop(2)
    b.kernels.append(finish)
    assert_noticed(b.schedule(), "buffer 1 is used between")


def test_slots_of_a_leaf_made_before_the_commit():
    b = Builder()
    x = b.buffer("input", (100,), position=0)
    leaf = parameter("total", np.zeros((), np.float32))
    total, slots = b.buffer("stored", (), leaf=leaf), b.buffer("slots", ())
    b.reduce(x, slots, total)
    verify_schedule(b.schedule(0))
    assert_noticed(b.schedule(1), "its slots are made before the commit")


# Bodies


def kernel_of(body, axes=(10,), scratch=(), **more):
    """A schedule of one kernel over operands x, i (int64) and out, 10 elements each."""
    b = Builder()
    x = b.buffer("input", (10,), position=0)
    i = b.buffer("input", (10,), I64, position=1)
    out = b.buffer("output", (10,), position=0)
    operands = (
        Operand(x, "read", F32),
        Operand(i, "read", I64),
        Operand(out, more.pop("mode", "write"), F32),
    )
    b.kernels.append(
        LoopKernel("body", axes, operands, scratch, tuple(body), (SITE,), 1, **more)
    )
    return b.schedule(outputs=(out,))


def at(operand, *strides, offset=0, dynamic=None):
    return Access(operand, strides or (1,), offset, dynamic)


LOAD = Load(0, at(0), F32)
STORE = Store(at(2), 0)
COPY = Loop(0, (LOAD, STORE))
YES = Number(9, True, np.dtype(bool))
COPY_LATER = Loop(0, (Load(9, at(0), F32), Store(at(2), 9)))


def test_valid_bodies_pass():
    verify_schedule(kernel_of([COPY]))
    reduction = (
        Initial(0, "add", F32),
        Loop(0, (Load(1, at(0), F32), Accumulate(0, "add", 1, F32))),
        Loop(0, (Compute(2, parse("{0} * {0}"), (0,), F32), Store(at(2), 2))),
    )
    verify_schedule(kernel_of(reduction))
    gather = (
        Load(0, at(1), I64),
        Index(1, (1,)),
        CheckIndex(2, 0, 10, 1, 0),
        Load(3, at(0, 0, dynamic=(2, 1)), F32),
        Store(at(2), 3),
    )
    verify_schedule(kernel_of([Loop(0, gather)], fails=True))
    through_scratch = (
        Loop(1, (Load(0, at(0, 0, 1), F32), Store(at(-1, 0, 1), 0))),
        Loop(1, (Load(1, at(-1, 0, 1), F32), Store(at(2, 5, 1), 1))),
    )
    body = [Loop(0, through_scratch)]
    verify_schedule(kernel_of(body, (2, 5), (Scratch(F32, 5),)))
    rarely = (LOAD, STORE, YES, When(9, (Store(at(2), 0),)))
    verify_schedule(kernel_of([Loop(0, rarely)]))


BROKEN_BODIES = [
    # values
    ([Loop(0, (STORE,))], "value 0 is used, but made later or never"),
    ([Loop(0, (STORE, LOAD))], "value 0 is used, but made later or never"),
    ([Loop(0, (LOAD,)), Loop(0, (STORE,))], "value 0 is used, but made in a loop"),
    ([Loop(0, (LOAD, LOAD, STORE))], "value 0 is made twice"),
    ([Loop(0, (LOAD, When(0, (STORE,))))], "value 0 is float32, used as bool"),
    ([Loop(0, (LOAD, When(1, (STORE,))))], "value 1 is used, but made later or never"),
    ([Loop(0, (YES, When(9, (LOAD,)), STORE))], "value 0 is used, but made in a loop"),
    ([Loop(0, (LOAD, YES, When(9, (STORE,))))], "operand 2 is never written"),
    ([YES, When(9, (Loop(0, (LOAD, YES, STORE)),))], "value 9 is made twice"),
    ([COPY, COPY], "value 0 is made twice"),
    ([Loop(0, (LOAD, Compute(1, parse("exp({1})"), (0,), F32), STORE))], "lacks 1"),
    ([Loop(0, (LOAD, Compute(1, parse("f({low})"), (0,), F32), STORE))], "lacks low"),
    ([Loop(0, (LOAD, Compute(1, parse("{0}"), (0,), F32, 1), STORE))], "site 1 of 1"),
    ([Loop(0, (LOAD, Accumulate(1, "add", 0, F32), STORE))], "1 is accumulated, but"),
    ([Loop(0, (LOAD, Accumulate(0, "add", 0, F32), STORE))], "0 is accumulated, but"),
    # dtypes
    ([Loop(0, (Load(0, at(0), F64), STORE))], "operand 0 is float32, accessed as"),
    ([Loop(0, (Number(0, 1, I64), STORE))], "operand 2 is float32, accessed as int64"),
    (
        [
            Initial(1, "add", F64),
            Loop(0, (LOAD, Accumulate(1, "add", 0, F64), STORE)),
        ],
        "value 0 is float32, used as float64",
    ),
    ([Loop(0, (LOAD, CheckIndex(1, 0, 5, 0, 0), STORE))], "value 0 is float32, used"),
    # loops
    ([Loop(1, (LOAD, STORE))], "loop over axis 1 of 1"),
    ([Loop(0, (Loop(0, (LOAD, STORE)),))], "axis 0 inside of itself"),
    ([LOAD, Loop(0, (STORE,))], "an index along axis 0 outside of its loop"),
    ([Index(1, (1,)), COPY], "an index along axis 0 outside of its loop"),
    ([Loop(0, (Load(0, at(0, 1, 1), F32), STORE))], "2 strides for 1 axes"),
    # memory
    ([Loop(0, (LOAD, Store(at(0), 0)))], "operand 0 is written, its mode is read"),
    ([Loop(0, (Load(0, at(2), F32), STORE))], "operand 2 is read, its mode is write"),
    ([Loop(0, (LOAD,))], "operand 2 is never written"),
    ([Loop(0, (Load(0, at(5), F32), STORE))], "access to operand 5: none such"),
    ([Loop(0, (Load(0, at(-1), F32), STORE))], "access to operand -1: none such"),
    ([Loop(0, (Load(0, at(0, 2), F32), STORE))], "accessed at 0..18, it has 10"),
    ([Loop(0, (Load(0, at(0, offset=1), F32), STORE))], "accessed at 1..10, it has"),
    ([Loop(0, (Load(0, at(0, -1), F32), STORE))], "accessed at -9..0, it has"),
    ([Loop(0, (LOAD, Store(at(2, 0), 0)))], "all chunks write the same elements"),
    ([Number(0, 1.0, F32), Store(at(2, 0), 0)], "all chunks write the same elements"),
]


@pytest.mark.parametrize(("body", "match"), BROKEN_BODIES)
def test_broken_bodies(body, match):
    assert_noticed(kernel_of(body), match)


def test_a_kernel_without_an_axis():
    assert_noticed(with_kernel(ADD, axes=(), body=()), "has no axis")


def test_a_check_in_a_kernel_that_cannot_fail():
    body = (
        Load(0, at(1), I64),
        CheckIndex(1, 0, 10, 0, 0),
        Load(2, at(0, 0, dynamic=(1, 1)), F32),
        Store(at(2), 2),
    )
    assert_noticed(kernel_of([Loop(0, body)]), "says it cannot")
    wide = changed(body, 1, CheckIndex(1, 0, 11, 0, 0))
    assert_noticed(kernel_of([Loop(0, wide)], fails=True), "accessed at 0..10")
    nowhere = changed(body, 1, CheckIndex(1, 0, 10, 0, 3))
    assert_noticed(kernel_of([Loop(0, nowhere)], fails=True), "site 3 of 1")


def test_scratch_read_before_it_is_written():
    body = [Loop(0, (Load(0, at(-1, 0), F32), STORE))]
    assert_noticed(kernel_of(body, scratch=(Scratch(F32, 4),)), "scratch 0 is read")


def test_scratch_that_is_too_small():
    body = [Loop(0, (LOAD, Store(at(-1), 0), STORE))]
    assert_noticed(kernel_of(body, scratch=(Scratch(F32, 9),)), "it has 9 elements")


def test_one_chunk_may_write_one_element_again_and_again():
    verify_schedule(kernel_of([Loop(0, (LOAD, Store(at(2, 0), 0)))], parallel=False))


def update(load, store):
    b = Builder()
    x = b.buffer("input", (10,), position=0)
    a = b.buffer("temporary", (10,))
    b.elementwise([x], a)
    body = (Load(0, load, F32), Compute(1, parse("-{0}"), (0,), F32), Store(store, 1))
    b.loops("negative", (10,), [Operand(a, "update", F32)], [Loop(0, body)])
    return b.schedule()


def test_in_place_at_two_places():
    verify_schedule(update(at(0), at(0)))
    broken = update(at(0, -1, offset=9), at(0))
    assert_noticed(broken, "operand 0 is updated at two places")


def test_a_buffer_read_and_written_as_two_operands():
    assert_noticed(with_operand(UPDATE, 0, buffer=W), "two operands for buffer 1")


def test_symbolic_bounds():
    n = Size.symbol("n")

    def rows(offset, extent):
        b = Builder()
        x = b.buffer("input", (n, 4), position=0)
        out = b.buffer("output", (n, 4), position=0)
        operands = (Operand(x, "read", F32), Operand(out, "write", F32))
        inner = (Load(0, at(0, 4, 1, offset=offset), F32), Store(at(1, 4, 1), 0))
        b.loops("copy", (extent, 4), operands, [Loop(0, (Loop(1, inner),))])
        return b.schedule(outputs=(out,))

    verify_schedule(rows(0, n))
    verify_schedule(rows(4, n - 1))
    assert_noticed(rows(4, n), "operand 0 is accessed at")
    assert_noticed(rows(0, n + 1), "operand 0 is accessed at")


# Matrix products


def product(**fields):
    b = Builder()
    x, y = b.buffer("input", (2, 3), position=0), b.buffer("input", (3, 4), position=1)
    out = b.buffer("output", (2, 4), position=0)
    b.gemm(x, y, out, 2, 4, 3)
    b.kernels[0] = replace(b.kernels[0], **fields)
    return b.schedule(outputs=(out,))


def test_matrix_products():
    verify_schedule(product())
    assert_noticed(product(k=4), "rows of operand 0 overlap: 4 in 3")
    assert_noticed(product(m=3), "operand 0 spans 0..8 of 6 elements")
    assert_noticed(product(ld=(3, 4, 5)), "operand 2 spans 0..8 of 8 elements")
    assert_noticed(product(offsets=(0, 1, 0)), "operand 1 spans 1..12")
    assert_noticed(product(transposed=(True, False)), "operand 0 spans")
    assert_noticed(product(batch=2, batch_strides=(0, 0, 8)), "operand 2 spans 0..15")
    assert_noticed(product(beta=1.0), "mode of C is write with beta 1.0")
    verify_schedule(product(batch=0, batch_strides=(6, 12, 8)))


def test_nothing_accumulates_in_16_bits():
    with_half = product()
    buffers = tuple(replace(b, dtype=F16) for b in with_half.buffers)
    kernel = with_half.kernels[0]
    kernel = replace(
        kernel, operands=tuple(replace(o, dtype=F16) for o in kernel.operands)
    )
    schedule = replace(with_half, buffers=buffers, kernels=(kernel,))
    assert_noticed(schedule, "accumulates in float16: widen it")
    for combine, bad in (("add", True), ("multiply", True), ("maximum", False)):
        load = Load(1, at(0), F32)
        cast = Compute(2, parse("{S}({0})"), (1,), F16)
        step = Accumulate(0, combine, 2, F16)
        body = (Initial(0, combine, F16), Loop(0, (load, cast, step)), COPY_LATER)
        if bad:
            assert_noticed(kernel_of(body), "accumulates in float16: widen it")
        else:
            verify_schedule(kernel_of(body))
    slots = with_finish(F16)
    assert_noticed(slots, "accumulates in float16: widen it")


def with_finish(dtype):
    """The example with a sum whose slots have `dtype`."""
    numbers = (SLOTS, TOTAL)
    buffers = tuple(
        replace(b, dtype=dtype) if b.number in numbers else b for b in GOOD.buffers
    )
    kernels = list(GOOD.kernels)
    for position in (SUM, FINISH):
        operands = tuple(
            replace(o, dtype=dtype) if o.buffer in numbers else o
            for o in kernels[position].operands
        )
        kernels[position] = replace(kernels[position], operands=operands)
    kernels[FINISH] = replace(kernels[FINISH], dtype=dtype)
    kernels[SUM] = replace(kernels[SUM], body=_as(kernels[SUM].body, dtype))
    return replace(GOOD, buffers=buffers, kernels=tuple(kernels))


def _as(body, dtype):
    """Statements that make a value of `dtype` of everything, as a maximum."""
    result = []
    for s in body:
        if isinstance(s, Loop):
            s = Loop(s.axis, _as(s.body, dtype))
        elif isinstance(s, Initial | Accumulate):
            s = replace(s, dtype=dtype, combine="maximum")
        result.append(s)
        if isinstance(s, Load):
            result[-1] = replace(s, result=s.result + 1000)
            result.append(
                Compute(s.result, parse("{S}({0})"), (s.result + 1000,), dtype)
            )
    return tuple(result)


def test_matrix_product_into_its_own_input():
    operands = product().kernels[0].operands
    into = (*operands[:2], replace(operands[2], buffer=0))
    assert_noticed(product(operands=into), "two operands for buffer 0")
    reading = (operands[0], replace(operands[1], mode="write"), operands[2])
    assert_noticed(product(operands=reading), "reads A and B, got modes read and write")


def test_any_two_dependent_kernels_in_the_wrong_order_are_noticed():
    rng = random.Random(1)
    for _ in range(40):
        good = random_schedule(rng, rng.randint(2, 20))
        kernels = list(good.kernels)
        later = rng.randrange(1, len(kernels))
        reads = {o.buffer for o in kernels[later].operands if o.mode != "write"}
        makers = [
            k
            for k, kernel in enumerate(kernels[:later])
            if any(o.buffer in reads and o.mode != "read" for o in kernel.operands)
        ]
        if makers:
            kernels.insert(makers[-1], kernels.pop(later))
            assert_noticed(replace(good, kernels=tuple(kernels)), "before|finishes|com")
