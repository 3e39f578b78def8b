"""The engines of the contrast: a step of a model, and what it costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import staticgrad as sg
from benchmarks.clock import calls
from benchmarks.contrast.ledger import Ledger
from benchmarks.contrast.models import Model
from benchmarks.contrast.tape import Tape
from staticgrad.compiler.kernel_ir.schedule import ControlKernel, Schedule
from staticgrad.ir.size import evaluate


@dataclass(frozen=True, slots=True)
class Running:
    """A model in an engine: ``many(n)`` runs n steps, `count` counts the cost of one.

    `parameters` gives the values after what has run.
    """

    many: Callable[[int], Any]
    count: Callable[[], Ledger]
    parameters: Callable[[], list[np.ndarray]]


def on_tape(model: Model) -> Running:
    """The define-by-run engine of tape.py."""
    p, d = model.arrays()
    own = {name: array.copy() for name, array in p.items()}

    def step(ledger: Ledger | None = None) -> None:
        tape = Tape(ledger)
        leaves = {name: tape.value(array) for name, array in own.items()}
        data = {k: v if k == "steps" else tape.value(v) for k, v in d.items()}
        loss = model.loss(tape, leaves, data)
        for leaf, g in zip(
            leaves.values(), tape.gradients(loss, list(leaves.values())), strict=True
        ):
            tape.descend(leaf.data, g, model.rate)

    def count() -> Ledger:
        ledger = Ledger()
        step(ledger)
        return ledger

    return Running(calls(step), count, lambda: list(own.values()))


class _Static:
    """The operations of the models as graph."""

    matmul, tanh, relu = sg.matmul, sg.tanh, sg.nn.relu
    softplus, mean = sg.softplus, sg.mean
    cross_entropy = sg.nn.cross_entropy
    add, sub, mul = sg.add, sg.subtract, sg.multiply

    @staticmethod
    def scan(step: Any, state: Any, steps: Any) -> Any:
        """The last carry."""
        last, _ = sg.scan(lambda carry, x: (step(carry, x), None), state, steps)
        return last


def static(model: Model) -> Running:
    """staticgrad: the step compiled once, runs repeated in one native call."""
    p, d = model.arrays()
    with sg.Graph():
        leaves = {name: sg.parameter(value, name=name) for name, value in p.items()}
        inputs = {k: sg.input(k, v.shape, dtype=v.dtype) for k, v in d.items()}
        loss = model.loss(_Static, leaves, inputs)
        optimizer = sg.optim.SGD(model.rate)
        updates = optimizer.updates(sg.grad(loss, leaves), leaves)
        f = sg.compile(
            loss, inputs=list(inputs.values()), updates=updates, mode="train"
        )
    bound = f.bind(**d)

    def count() -> Ledger:
        plan = f.memory.plan
        ledger = Ledger(peak=plan.arena_bytes + 4)  # and the loss
        _count(plan.schedule, dict(plan.values), ledger)
        return ledger

    def parameters() -> list[np.ndarray]:
        return [leaf.value for leaf in leaves.values()]

    return Running(bound.repeat, count, parameters)


def _count(schedule: Schedule, values: dict[str, int], ledger: Ledger) -> None:
    """Every kernel with what it reads and writes; bodies as often as they run."""
    pending = [(schedule, 1)]
    while pending:
        inner, times = pending.pop()
        sizes = [evaluate(b.elements, values) * b.dtype.itemsize for b in inner.buffers]
        for kernel in inner.kernels:
            if isinstance(kernel, ControlKernel):
                length = evaluate(kernel.length, values) if kernel.form == "loop" else 1
                pending += [(body, times * length) for body in kernel.bodies]
                continue
            ledger.kernels += times
            for operand in kernel.operands:
                twice = 2 if operand.mode == "update" else 1
                ledger.moved += times * twice * sizes[operand.buffer]


def eager_torch(model: Model) -> Running:
    """PyTorch, one operation after the other."""
    import torch  # heavy, and not always there

    from benchmarks.contrast.torch_ledger import counted

    torch.set_num_threads(1)
    p, d = model.arrays()
    leaves = {k: torch.tensor(v, requires_grad=True) for k, v in p.items()}
    data = {k: torch.from_numpy(v) for k, v in d.items()}
    optimizer = torch.optim.SGD(leaves.values(), lr=model.rate, foreach=False)
    functional = torch.nn.functional

    class Ops:
        matmul, tanh, relu = torch.matmul, torch.tanh, torch.relu
        softplus, mean = functional.softplus, torch.mean
        cross_entropy = functional.cross_entropy
        add, sub, mul = torch.add, torch.sub, torch.mul

        @staticmethod
        def scan(step: Any, state: Any, steps: Any) -> Any:
            for x in steps:
                state = step(state, x)
            return state

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        model.loss(Ops, leaves, data).backward()
        optimizer.step()

    def parameters() -> list[np.ndarray]:
        return [leaf.detach().numpy().copy() for leaf in leaves.values()]

    return Running(calls(step), lambda: counted(step), parameters)
