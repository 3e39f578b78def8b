"""The verifiers notice a corrupted branch or loop: graph, schedule and plan."""

from dataclasses import replace

import numpy as np
import pytest

import staticgrad as sg
from staticgrad.compiler.compile import optimise
from staticgrad.compiler.kernel_ir.kernels import Operand
from staticgrad.compiler.kernel_ir.schedule import ControlKernel
from staticgrad.compiler.lower.lower import lower
from staticgrad.compiler.memory import planner
from staticgrad.compiler.passes.merge_loops import merge_loops
from staticgrad.compiler.verify.verify_plan import verify_plan
from staticgrad.compiler.verify.verify_schedule import verify_schedule
from staticgrad.errors import CompilerBug
from staticgrad.ir.graph import Graph
from staticgrad.ir.node import Node
from staticgrad.ir.types import FLOAT64
from staticgrad.ir.verify_graph import verify_graph


def loop():
    x = sg.input("x", (5, 2))
    w = sg.input("w", (2, 2))
    outputs = sg.scan(
        lambda c, v: (sg.tanh(c @ w + v), c[0]), sg.zeros((1, 2)), x[:, None]
    )
    return Graph.closed((x, w), outputs)


def repeat():
    x = sg.input("x", (2,))
    y = sg.while_loop(lambda v: v[0] > 1, lambda v: v / 2, x, max_steps=9)
    return Graph.closed((x,), (y,))


def branch():
    x = sg.input("x", (2,))
    y = sg.cond(x[0] > 0, lambda: sg.sqrt(x), lambda: x * 2)
    return Graph.closed((x,), (y,))


def scheduled(graph):
    return lower(optimise(graph, "eval"))


def control(schedule):
    """The position of the control kernel, and it."""
    return next(
        (n, k) for n, k in enumerate(schedule.kernels) if isinstance(k, ControlKernel)
    )


def with_kernel(schedule, **changes):
    position, kernel = control(schedule)
    kernels = list(schedule.kernels)
    kernels[position] = replace(kernel, **changes)
    return replace(schedule, kernels=tuple(kernels))


@pytest.mark.parametrize("make", [loop, repeat, branch])
def test_what_is_right_passes(make):
    schedule = scheduled(make())
    verify_schedule(schedule)
    verify_plan(planner.plan(schedule, {}))


def refuse(schedule, match):
    with pytest.raises(CompilerBug, match=match):
        verify_schedule(schedule)


def changed_port(kernel, body, pick, **changes):
    ports = list(kernel.ports)
    number = next(n for n, p in enumerate(ports[body]) if pick(p))
    inner = list(ports[body])
    inner[number] = replace(inner[number], **changes)
    ports[body] = tuple(inner)
    return tuple(ports)


def test_ports():
    schedule = scheduled(loop())
    _, kernel = control(schedule)

    def moving(p):
        return p.step != 0

    for changes, match in [
        ({"step": 1000}, "is accessed up to"),
        ({"operand": 99}, "none such"),
        ({"inner": 99}, "ports for"),
    ]:
        ports = changed_port(kernel, 0, moving, **changes)
        refuse(with_kernel(schedule, ports=ports), match)
    missing = (kernel.ports[0][1:],)
    refuse(with_kernel(schedule, ports=missing), "ports for")
    refuse(with_kernel(schedule, ports=()), "lists of ports")
    carry = next(b for b in kernel.bodies[0].buffers if b.kind == "carry")
    ports = changed_port(kernel, 0, lambda p: p.inner == carry.number, step=1)
    refuse(with_kernel(schedule, ports=ports), "moves")
    read = next(n for n, o in enumerate(kernel.operands) if o.dtype == carry.dtype)
    ports = changed_port(kernel, 0, lambda p: p.inner == carry.number, operand=read)
    refuse(with_kernel(schedule, ports=ports), "its mode is read")


def test_operands():
    schedule = scheduled(loop())
    _, kernel = control(schedule)
    first, *others = kernel.operands
    wrong = (replace(first, dtype=FLOAT64), *others)
    refuse(
        with_kernel(schedule, operands=wrong), r"0 is float64, buffer \d+ is float32"
    )
    wrong = (Operand(999, "read", first.dtype), *others)
    refuse(with_kernel(schedule, operands=wrong), "none such")
    written = next(o for o in kernel.operands if o.mode == "write")
    wrong = (replace(first, buffer=written.buffer), *others)
    refuse(
        with_kernel(schedule, operands=wrong), r"two operands for buffer|buffer \d+ is "
    )
    refuse(with_kernel(schedule, arena=0), "no arena")
    refuse(with_kernel(schedule, counter=0), "scalar")
    refuse(with_kernel(schedule, starts=((0, 0),)), "cannot start")


def test_bodies():
    schedule = scheduled(repeat())
    _, kernel = control(schedule)
    refuse(with_kernel(schedule, bodies=kernel.bodies[:1]), "1 bodies for a repeat")
    refuse(with_kernel(schedule, fails=False, bodies=kernel.bodies, going=0), "scalar")
    condition, step = kernel.bodies
    twice = replace(step, kernels=step.kernels * 2, commit=2 * step.commit)
    refuse(with_kernel(schedule, bodies=(condition, twice)), "carry")
    none = replace(step, commit=0)
    refuse(with_kernel(schedule, bodies=(condition, none)), "commits")


def test_a_loop_that_can_fail_says_so_and_comes_before_the_commit():
    x = sg.input("x", (4,))
    w = sg.ones((2, 2))
    y = sg.fori_loop(0, 3, lambda i, c: c @ w + x[i], sg.zeros((1, 2)))
    schedule = scheduled(Graph.closed((x,), (y,)))
    assert control(schedule)[1].fails
    refuse(with_kernel(schedule, fails=False), "says it cannot")
    refuse(replace(schedule, commit=0), "can fail after the commit")


def test_plans_of_bodies():
    plan = planner.plan(scheduled(loop()), {})
    position, kernel = control(plan.schedule)
    verify_plan(plan)

    def refuse_plan(broken, match):
        with pytest.raises(CompilerBug, match=match):
            verify_plan(broken)

    def with_body(**changes):
        bodies = list(plan.bodies)
        (body,) = bodies[position]
        bodies[position] = (replace(body, **changes),)
        return replace(plan, bodies=tuple(bodies))

    refuse_plan(replace(plan, bodies=((),) * len(plan.bodies)), "lacks plans")
    refuse_plan(with_body(values=(("n", 3),)), "other sizes")
    refuse_plan(with_body(arena_bytes=64 * 999), "arena")
    arena = kernel.operands[kernel.arena].buffer
    sizes = list(plan.bytes)
    sizes[arena] -= 64
    refuse_plan(replace(plan, bytes=tuple(sizes)), f"buffer {arena}")


def node_of(graph):
    return next(n for n in graph.nodes if n.graphs)


def refuse_graph(graph, match, **changes):
    old = node_of(graph)
    fields = {"inputs": old.inputs, "attrs": old.attrs, "graphs": old.graphs} | changes
    node = Node(
        old.op, fields["inputs"], fields["attrs"], old.types, graphs=fields["graphs"]
    )
    with pytest.raises(CompilerBug, match=match):
        verify_graph(Graph.closed(graph.inputs, node.outputs))


def test_graphs():
    graph = loop()
    node = node_of(graph)
    (body,) = node.graphs
    fewer = Graph.closed(body.inputs[:-1], body.outputs)
    refuse_graph(graph, "a body of|unlisted", graphs=(fewer,))
    swapped = Graph.closed(body.inputs, body.outputs[::-1])
    refuse_graph(graph, "fitting", graphs=(swapped,))
    refuse_graph(graph, "sequences of length", attrs={**node.attrs, "length": 4})
    w = sg.parameter(np.zeros((1, 2), np.float32), name="w")
    own = Graph.closed(body.inputs, (w, *body.outputs[1:]))
    refuse_graph(graph, "captures as inputs", graphs=(own,))
    updating = Graph.closed(body.inputs, body.outputs, [(w, body.outputs[0])])
    refuse_graph(graph, "no updates", graphs=(updating,))


def test_a_loop_and_its_derivative_share_the_forward_steps():
    x = sg.input("x", (5,))
    last, ys = sg.scan(lambda c, v: (sg.sin(c * v), c), 1.0, x)
    y = last + sg.sum(ys)
    graph = Graph.closed((x,), (y, sg.grad(y, x)))

    def count(g):
        return sum(bool(n.graphs) for n in g.nodes)

    assert (count(graph), count(merge_loops(graph))) == (3, 2)
    tangent = sg.jvp(y, x, np.ones(5, np.float32))
    graph = Graph.closed((x,), (y, tangent))
    assert (count(graph), count(merge_loops(graph))) == (2, 1)
    plain = Graph.closed((x,), (y,))
    assert merge_loops(plain) is plain


def test_loops_of_which_one_needs_the_other_stay_apart():
    x = sg.input("x", (3,))

    def step(c, v):
        return (c * v, None)

    first, _ = sg.scan(step, 1.0, x)
    node = node_of(Graph.closed((x,), (first,)))
    (body,) = node.graphs
    again = Node(
        node.op, (first, *node.inputs[1:]), node.attrs, node.types, graphs=(body,)
    )
    graph = Graph.closed((x,), (again.outputs[0],))
    assert merge_loops(graph) is graph
