"""Are long bodies reordered so that nothing but their speed changes?"""

import numpy as np
import pytest
from handwritten import kernel
from llvmlite import ir

from staticgrad.compiler.codegen import call_kernel as calling
from staticgrad.compiler.codegen import native_compile
from staticgrad.compiler.codegen.call_kernel import BoundKernel
from staticgrad.compiler.codegen.kernel_source import NativeKernel
from staticgrad.compiler.codegen.llvm import instruction_order
from staticgrad.compiler.codegen.llvm.instruction_order import LONG_BODY, overlapped
from staticgrad.compiler.codegen.llvm.ir_emitter import IREmitter
from staticgrad.compiler.codegen.loops.loop_source import kernel_source
from staticgrad.compiler.codegen.text_emitter import canonical
from staticgrad.compiler.kernel_ir.kernels import Access, Compute, Load, Loop, Store
from staticgrad.ir.expression import parse
from staticgrad.ir.types import FLOAT32

FLOAT, LONG = ir.FloatType(), ir.IntType(64)


def function_of(module, name, *kinds):
    return ir.Function(module, ir.FunctionType(FLOAT, kinds), name)


def written(kind=FLOAT, chains=4, links=30):
    """Chains one after the other; each loads, and stores where it has loaded."""
    module = ir.Module()
    f = function_of(module, "f", kind.as_pointer(), LONG)
    block = f.append_basic_block("body")
    b = ir.IRBuilder(block)
    index = b.phi(LONG)
    index.add_incoming(f.args[1], block)
    m = IREmitter(b, kind)
    for _ in range(chains):
        place = b.gep(f.args[0], [index])
        x = b.load(place)
        for _ in range(links):
            x = m.fma(x, x, 0.5)
        b.store(x, place)
    return block.instructions


def place_of(body):
    return {id(one): place for place, one in enumerate(body)}


def memory(body):
    return [id(one) for one in body if one.opname in ("load", "store")]


def test_operands_come_first_and_nothing_is_lost():
    body = written()
    made = overlapped(body)
    assert made != body
    assert sorted(map(id, made)) == sorted(map(id, body))
    assert made[0].opname == "phi"
    places = place_of(made)
    for one in made[1:]:
        used = [places[id(x)] for x in one.operands if id(x) in places]
        assert all(place < places[id(one)] for place in used)


def test_memory_is_used_in_the_same_order():
    body = written()
    assert memory(overlapped(body)) == memory(body)


def test_loads_pass_each_other_and_chains_run_beside_each_other():
    body = written()
    chains = [one for one in body if one.opname != "store"]
    made = overlapped(chains)
    places = place_of(made)
    loads = [places[id(one)] for one in chains if one.opname == "load"]
    assert max(loads) < len(made) // 2


def test_a_call_that_may_write_keeps_its_place_among_what_uses_memory():
    body = written()
    module = ir.Module()
    call = ir.IRBuilder()
    block = function_of(module, "g", FLOAT).append_basic_block("body")
    call.position_at_end(block)
    stranger = call.call(function_of(module, "stranger"), ())
    stores = [place for place, one in enumerate(body) if one.opname == "store"]
    made = overlapped([*body[: stores[1]], stranger, *body[stores[1] :]])
    places = place_of(made)
    before, after = memory(body[: stores[1]]), memory(body[stores[1] :])
    assert all(places[one] < places[id(stranger)] for one in before)
    assert all(places[one] > places[id(stranger)] for one in after)


@pytest.mark.parametrize(
    "body",
    [written(links=2), written(ir.VectorType(FLOAT, 8))],
    ids=["short", "vectors"],
)
def test_what_stays_as_it_is(body):
    assert overlapped(body) == body


def test_the_bits_of_a_long_kernel_stay(monkeypatch):
    """Two elements are read and written in place, through four functions."""
    access = Access(0, (1,))
    calls = ("tanh({0} + {1})", "sigmoid({0})", "exp(-({0} * {0}))", "log1p({0} * {0})")
    body, number = [Load(0, access, FLOAT32), Load(1, Access(1, (1,)), FLOAT32)], 2
    for call in calls:
        body += [
            Compute(number, parse(call), (0, 1), FLOAT32),
            Load(number + 1, access, FLOAT32),
            Compute(number + 2, parse("{0} * {1}"), (number, number + 1), FLOAT32),
            Store(access, number + 2),
        ]
        number += 3
    made = kernel(
        (64,), [("update", "float32"), ("read", "float32")], (Loop(0, tuple(body)),)
    )
    x, y = np.random.default_rng(5).normal(size=(2, 64)).astype("f4")
    text, found, orders = canonical(kernel_source(made).text), [], set()
    for longest in (LONG_BODY, 10**9):
        monkeypatch.setattr(instruction_order, "LONG_BODY", longest)
        orders.add(native_compile.ir_of(text, "ordered").text)
        address = native_compile.compiled(text, f"{longest:024}").address
        way = NativeKernel(made, address, (), False, 0.0)
        monkeypatch.setattr(calling, "native", lambda _kernels, way=way: [way])
        changed = x.copy()
        BoundKernel(made, [changed, y], {}).run()
        found.append(changed)
    assert len(orders) == 2
    assert np.array_equal(*found)
    exact = x * np.tanh(x + y) / (1 + np.exp(-x)) * np.exp(-(x**2)) * np.log1p(x**2)
    np.testing.assert_allclose(found[0], exact, rtol=1e-5)
