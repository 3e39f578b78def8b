"""Kernel of a Control node: its bodies as Schedules, and their ports.

A carry of a loop is the buffer of the node's result from the first step on: the start
is copied there, and each step writes its new value over the old one, as a step of
training does with a parameter. Sequences and stacks are read and written in place, one
slice further in each step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from staticgrad.compiler.kernel_ir.kernels import Mode, Operand, site_of
from staticgrad.compiler.kernel_ir.layouts import base_of
from staticgrad.compiler.kernel_ir.schedule import (
    BufferKind,
    ControlKernel,
    Port,
    Schedule,
)
from staticgrad.compiler.lower.materialise import copied
from staticgrad.ir.graph import Graph, with_nested
from staticgrad.ir.node import Node, Tensor
from staticgrad.ir.op import Control, ControlForm, Leaf, can_fail, snapshot_words
from staticgrad.ir.size import Dim, Shape, product
from staticgrad.ir.types import BOOL, INT64, UINT8, DType

BufferOf = Callable[[Tensor], int]
NewBuffer = Callable[[BufferKind, Shape, DType], int]
Lower = Callable[[Graph], Schedule]
Place = tuple[int, Dim]
"""An operand, and the step of a port to it."""


def may_fail(node: Node) -> bool:
    """Whether the node, or one inside of it, can report a bad value."""
    nodes = with_nested([node])
    return any(can_fail(n.op.code) or n.attrs.get("limit", -1) >= 0 for n in nodes)


def may_last(node: Node) -> bool:
    """Whether the node contains a loop, which a stop must be able to end."""
    codes = (n.op.code for n in with_nested([node]))
    return any(isinstance(code, Control) and code.form != "branch" for code in codes)


def controlled(
    node: Node, buffer_of: BufferOf, new_buffer: NewBuffer, lower: Lower
) -> ControlKernel:
    """Return the kernel of `node`; `new_buffer` makes buffers of its own."""
    code = node.op.code
    assert isinstance(code, Control)
    return FORMS[code.form](_Making(node, buffer_of, new_buffer, lower))


class _Making:
    """Construction of one kernel: operands, bodies and ports."""

    def __init__(
        self, node: Node, buffer_of: BufferOf, new_buffer: NewBuffer, lower: Lower
    ) -> None:
        self.node = node
        self.new_buffer = new_buffer
        self.lower = lower
        self.operands: list[Operand] = []
        self.bodies: list[Schedule] = []
        self.ports: list[tuple[Port, ...]] = []
        self.reads = [self._operand(buffer_of(base_of(t)), t) for t in node.inputs]
        self.writes = [
            self._operand(buffer_of(t), t, mode="write") for t in node.outputs
        ]

    def branch(self) -> ControlKernel:
        """Make a branch: the bodies are the branches."""
        inputs: list[Place] = [(operand, 0) for operand in self.reads[1:]]
        outputs: list[Place] = [(operand, 0) for operand in self.writes]
        for graph in self.node.graphs:
            own = Graph.closed(graph.inputs, _own(graph.outputs))
            self._add_body(own, inputs, outputs)
        return self._kernel("branch", counter=self.reads[0])

    def loop(self) -> ControlKernel:
        """Make a loop: the body is one step."""
        attrs = self.node.attrs
        carries, sequences = attrs["carries"], attrs["sequences"]
        (graph,) = self.node.graphs
        counter = self._new("temporary", (), INT64)
        along = carries + sequences
        inputs: list[Place] = [(counter, 0)]
        inputs += [(operand, 0) for operand in self.writes[:carries]]
        inputs += [
            (operand, product(leaf.shape))
            for operand, leaf in zip(
                self.reads[carries:along], graph.inputs[carries + 1 :], strict=False
            )
        ]
        inputs += [(operand, 0) for operand in self.reads[along:]]
        stacked = graph.outputs[carries:]
        outputs = [
            (operand, product(t.shape))
            for operand, t in zip(self.writes[carries:], stacked, strict=True)
        ]
        self._add_body(_step(graph, 1, carries, stacked), inputs, outputs)
        return self._kernel("loop", counter, self._starts(carries))

    def repeat(self) -> ControlKernel:
        """Make a repetition: the bodies are the condition and one step."""
        carries = self.node.attrs["carries"]
        condition, graph = self.node.graphs
        going = self._new("temporary", (), BOOL)
        inputs: list[Place] = [(operand, 0) for operand in self.writes[:carries]]
        inputs += [(operand, 0) for operand in self.reads[carries:]]
        asked = Graph.closed(condition.inputs, _own(condition.outputs))
        self._add_body(asked, inputs, [(going, 0)])
        self._add_body(_step(graph, 0, carries, ()), inputs, [])
        counter = self.writes[carries]
        kernel = self._kernel("repeat", counter, self._starts(carries), going)
        kept = self.node.attrs.get("kept", ())
        if not kept:
            return kernel
        state, *rooms = self.writes[carries + 1 :]
        return replace(
            kernel,
            state=state,
            kept=tuple((self.writes[n], r) for n, r in zip(kept, rooms, strict=True)),
            snapshots=self.node.attrs["checkpoints"],
        )

    def replay(self) -> ControlKernel:
        """Make a reversal: the bodies are a step and its reverse step."""
        attrs = self.node.attrs
        count, back = attrs["carries"], attrs["cotangents"]
        forward, backward = self.node.graphs
        snapshots = attrs["snapshots"]
        # the record of snapshots and their stacks, if the loop has kept some
        noted = count + 1 if attrs.get("noted", False) else 0
        begin = 1 + noted
        carries = self.node.inputs[begin : begin + count]
        own = [self._new("temporary", t.shape, t.dtype) for t in carries]
        room = [self._new("temporary", (snapshots, *t.shape), t.dtype) for t in carries]
        counter = self._new("temporary", (), INT64)
        state = self._new("temporary", (snapshot_words(snapshots),), INT64)
        after = begin + count + back
        rest: list[Place] = [
            (operand, product(leaf.shape) if n < attrs["sequences"] else 0)
            for n, (operand, leaf) in enumerate(
                zip(
                    self.reads[after:],
                    backward.inputs[1 + count + back :],
                    strict=True,
                )
            )
        ]
        at: list[Place] = [(counter, 0)]
        held: list[Place] = [(operand, 0) for operand in own]
        pulled: list[Place] = [(operand, 0) for operand in self.writes[:back]]
        stacked = backward.outputs[back:]
        outputs = [
            (operand, product(t.shape))
            for operand, t in zip(self.writes[back:], stacked, strict=True)
        ]
        self._add_body(_step(forward, 1, count, ()), [*at, *held, *rest], [])
        self._add_body(
            _step(backward, 1 + count, back, stacked),
            [*at, *held, *pulled, *rest],
            outputs,
        )
        targets = (*own, *self.writes[:back])
        if noted:
            targets = (state, *room, *targets)
        starts = [*zip(self.reads[1:after], targets, strict=True)]
        return replace(
            self._kernel("replay", counter, tuple(starts)),
            state=state,
            steps=self.reads[0],
            kept=tuple(zip(own, room, strict=True)),
            snapshots=snapshots,
            noted=noted > 0,
        )

    def _starts(self, carries: int) -> tuple[tuple[int, int], ...]:
        return tuple(zip(self.reads[:carries], self.writes[:carries], strict=True))

    def _operand(self, buffer: int, tensor: Tensor, mode: Mode = "read") -> int:
        self.operands.append(Operand(buffer, mode, tensor.dtype))
        return len(self.operands) - 1

    def _new(self, kind: BufferKind, shape: Shape, dtype: DType) -> int:
        buffer = self.new_buffer(kind, shape, dtype)
        self.operands.append(Operand(buffer, "write", dtype))
        return len(self.operands) - 1

    def _add_body(
        self, graph: Graph, inputs: Sequence[Place], outputs: Sequence[Place]
    ) -> None:
        body = self.lower(graph)
        ports: list[Port] = []
        for buffer in body.buffers:
            if buffer.kind in ("input", "carry"):
                ports.append(Port(buffer.number, *inputs[buffer.position]))
            elif buffer.kind == "output":
                ports.append(Port(buffer.number, *outputs[buffer.position]))
        self.bodies.append(body)
        self.ports.append(tuple(ports))

    def _kernel(
        self,
        form: ControlForm,
        counter: int,
        starts: tuple[tuple[int, int], ...] = (),
        going: int = -1,
    ) -> ControlKernel:
        node = self.node
        arena = self._new("arena", (), UINT8)
        return ControlKernel(
            name=node.op.name,
            form=form,
            operands=tuple(self.operands),
            bodies=tuple(self.bodies),
            ports=tuple(self.ports),
            starts=starts,
            arena=arena,
            counter=counter,
            sites=(site_of(node),),
            fails=may_fail(node),
            going=going,
            length=node.attrs.get("length", 0),
            reverse=node.attrs.get("reverse", False),
            limit=node.attrs.get("limit", -1),
        )


FORMS: dict[ControlForm, Callable[[_Making], ControlKernel]] = {
    "branch": _Making.branch,
    "loop": _Making.loop,
    "repeat": _Making.repeat,
    "replay": _Making.replay,
}


def _own(outputs: Sequence[Tensor]) -> list[Tensor]:
    """Return `outputs`, each made by a node with no other use in them."""
    seen: set[Tensor] = set()
    found: list[Tensor] = []
    for tensor in outputs:
        borrowed = isinstance(base_of(tensor).op.code, Leaf) or tensor in seen
        found.append(copied(tensor) if borrowed else tensor)
        seen.add(tensor)
    return found


def _step(graph: Graph, first: int, carries: int, stacked: Sequence[Tensor]) -> Graph:
    """Return one step of a loop, whose new carries replace the old ones."""
    old = graph.inputs[first : first + carries]
    pairs = zip(old, graph.outputs[:carries], strict=True)
    updates = [(leaf, new) for leaf, new in pairs if new is not leaf]
    return Graph.closed(graph.inputs, _own(stacked), updates)  # type: ignore[arg-type]
