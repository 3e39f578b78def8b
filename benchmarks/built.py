"""A workload as a staticgrad graph: what is compiled, timed and planned."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import staticgrad as sg
from benchmarks.workloads.workload import Arrays, Workload
from staticgrad.ir.graph import Update


@dataclass(frozen=True, slots=True)
class Built:
    """Inputs by name, outputs, updates; parameters and optimizer if it trains."""

    inputs: dict[str, sg.Input]
    outputs: list[sg.Tensor]
    updates: Sequence[Update] = ()
    parameters: dict[str, sg.Parameter] | None = None
    optimizer: sg.optim.Optimizer | None = None


def nothing(stage: str) -> None:
    """Do not time a stage."""


def built(
    workload: Workload, p: Arrays, d: Arrays, lap: Callable[[str], None] = nothing
) -> Built:
    """The graph of one step; ``lap(stage)`` is called after each stage."""
    make = training if workload.trains else pure
    with sg.Graph():
        return make(workload, p, d, lap)


def training(workload: Workload, p: Arrays, d: Arrays, lap) -> Built:
    """Loss, and updates of the parameters."""
    parameters = {k: sg.parameter(v, name=k) for k, v in p.items()}
    data = inputs_of(d)
    loss = workload.losses["ours"](sg, parameters, data)
    lap("build")
    grads = sg.grad(loss, parameters)
    kind = sg.optim.Adam if workload.kind == "adam" else sg.optim.SGD
    optimizer = kind(workload.rate)
    updates = optimizer.updates(grads, parameters)
    lap("differentiate")
    return Built(data, [loss], updates, parameters, optimizer)


def pure(workload: Workload, p: Arrays, d: Arrays, lap) -> Built:
    """A gradient or a value; parameters are inputs."""
    wrt, data = inputs_of(p), inputs_of(d)
    out = workload.losses["ours"](sg, wrt, data)
    lap("build")
    outputs = [out]
    if workload.kind == "gradient":
        outputs = list(sg.grad(out, wrt).values())
    lap("differentiate")
    return Built(wrt | data, outputs)


def inputs_of(arrays: Arrays) -> dict[str, sg.Input]:
    """Inputs of their shapes, as peers compile for given shapes too."""
    return {k: sg.input(k, v.shape, dtype=v.dtype) for k, v in arrays.items()}
