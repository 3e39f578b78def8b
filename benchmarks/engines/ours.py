"""staticgrad: a bound call, and `repeat` as the loop."""

import numpy as np

import staticgrad as sg
from benchmarks.built import Built, built
from benchmarks.compiled_step import load_pieces
from benchmarks.engines.runner import Runner
from benchmarks.workloads.workload import Arrays, Workload


def warm_up() -> None:
    """Run the setup of a process or machine: Numba's first use, the machine, products.

    Peers come with their products compiled, and import all that they have at once.
    """
    for name in sg.__all__:
        getattr(sg, name)
    with sg.Graph():
        x = sg.input("x", (2, 2))
        f = sg.compile(x @ x)
    f(np.ones((2, 2), np.float32))
    load_pieces()


def prepare(workload: Workload, p: Arrays, d: Arrays, threads: int) -> Runner:
    """Compile and bind."""
    sg.set_num_threads(threads)
    graph = built(workload, p, d)
    inputs = list(graph.inputs.values())
    mode = "train" if workload.trains else "eval"
    f = sg.compile(graph.outputs, inputs=inputs, updates=graph.updates, mode=mode)
    if workload.trains:
        return training(graph, f.bind(**d), p)
    bound = f.bind(**p, **d)
    return Runner(bound, bound, loop=bound.repeat)


def training(graph: Built, bound, p: Arrays) -> Runner:
    """A step whose results are the parameters."""

    def reset() -> None:
        for name, parameter in graph.parameters.items():
            parameter.value = p[name]
        graph.optimizer.reset()

    def result() -> list[np.ndarray]:
        return [parameter.value for parameter in graph.parameters.values()]

    return Runner(bound, result, reset, bound.repeat)
