"""Random graphs on the cuda target: however loops are spread, the numbers stay.

Sizes differ from graph to graph, so that chunks, tails of warps and idle lanes come up;
each kernel runs twice, in two orders of its threads.
"""

import numpy as np
import pytest
from cuda_devices import EmulatedDevice
from random_graphs import random_graph

import staticgrad as sg
from staticgrad.compiler.compile import optimise
from staticgrad.compiler.cuda.cuda_code import cuda_code
from staticgrad.compiler.cuda.device import using
from staticgrad.compiler.cuda.device_chunks import MOST_CHUNKS, chunks_on_gpu
from staticgrad.compiler.cuda.source.grid_mapping import CHUNKED, mapping_of
from staticgrad.compiler.kernel_ir.kernels import LoopKernel
from staticgrad.compiler.lower.lower import lower
from staticgrad.ir.graph import Graph, topological

SIZES = [1, 6, 40, 70]


def states_of(made, run, start):
    for state, value in zip(made.states, start, strict=True):
        state.value = value
    results = [run(**made.data), run(**made.data)]
    return results, [state.value for state in made.states]


@pytest.mark.parametrize("seed", range(24))
def test_random_graphs_equal_the_reference(seed):
    made = random_graph(1000 + seed, n=SIZES[seed % len(SIZES)])
    start = [state.value for state in made.states]
    options = {"updates": made.updates, "mode": "train"}
    device = EmulatedDevice(seed)
    device.block = 32 if seed % 3 else 96
    reference = sg.compile(made.outputs, made.inputs, target="reference", **options)
    with using(device):
        run = sg.compile(made.outputs, made.inputs, target="cuda", **options)
    wanted, after = states_of(made, reference, start)
    found, states = states_of(made, run, start)
    for one, other in zip(found, wanted, strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)
    for a, b in zip(states, after, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("seed", range(8))
def test_gradients_of_random_graphs_equal_the_reference(seed):
    made = random_graph(2000 + seed, steps=8, n=SIZES[seed % len(SIZES)])
    total = sum(sg.sum(sg.tanh(y)) for y in made.outputs)
    wrt = made.inputs + made.states
    plain = sg.grad(total, wrt, unused="zero", simplify=False)
    quick = sg.grad(total, wrt, unused="zero")
    wanted = sg.compile(plain, made.inputs, target="reference")(**made.data)
    with using(EmulatedDevice(seed)):
        run = sg.compile(quick, made.inputs, target="cuda")
    for a, b in zip(run(**made.data), wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-8)


def kernels(*outputs):
    inputs = []
    for output in outputs:
        for node in topological([output]):
            inputs += [t for t in node.outputs if isinstance(t, sg.Input)]
    graph = Graph.closed(tuple(dict.fromkeys(inputs)), outputs, [])
    schedule = lower(optimise(graph, "eval"), ())
    return cuda_code(schedule).loops


def workers(*outputs):
    return {
        mapping_of(loop).worker
        for loop in kernels(*outputs)
        if isinstance(loop, LoopKernel) and not loop.name.startswith("finish")
    }


def test_who_works_on_what():
    x, w = sg.input("x", ("n", 64)), sg.input("w", (64,))
    assert workers(sg.tanh(x) + w) == {"thread"}
    assert workers(sg.softmax(x)) == {"warp"}
    assert workers(sg.sum(x * x)) == {"block"}
    assert workers(sg.sum(x, axis=0)) == {"column"}
    assert workers(sg.cumsum(x, axis=1)) == {"thread"}
    soft = sg.softmax(x)
    assert workers(soft, sg.sum(soft, axis=0)) == {"row"}


def test_chunks_cover_the_rows_and_are_not_too_many():
    x = sg.input("x", ("n", 64))
    soft = sg.softmax(x)
    found = kernels(sg.sum(x), sg.sum(x * 2, axis=0), soft, sg.sum(soft, axis=0))
    for loop in found:
        worker = mapping_of(loop).worker
        for rows in (0, 1, 31, 1000, 10**6):
            chunks, size = chunks_on_gpu(loop, {"n": rows, "extent": 1, "chunks": 4})
            if loop.name.startswith("finish"):
                continue
            assert chunks * size >= rows
            assert (chunks - 1) * size < max(rows, 1)
            if worker in CHUNKED:
                assert chunks <= MOST_CHUNKS[worker]
            else:
                assert chunks == 1
