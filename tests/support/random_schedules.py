"""Random schedules, and schedules of a few kernels, for tests of order and memory."""

import numpy as np

from staticgrad.compiler.fuse.order import Task, order
from staticgrad.compiler.kernel_ir.kernels import (
    Access,
    Accumulate,
    Compute,
    FinishKernel,
    GemmKernel,
    Initial,
    Load,
    Loop,
    LoopKernel,
    Operand,
    Site,
    Store,
)
from staticgrad.compiler.kernel_ir.schedule import Buffer, Schedule
from staticgrad.ir.expression import parse
from staticgrad.ir.node import Node, Parameter
from staticgrad.ir.op import Leaf, Op
from staticgrad.ir.size import product
from staticgrad.ir.storage import Storage
from staticgrad.ir.types import TensorType

F32 = np.dtype(np.float32)
SITE = Site("test", None)


class Builder:
    """Collects buffers and kernels; `schedule()` gives the Schedule."""

    def __init__(self):
        self.buffers = []
        self.kernels = []

    def buffer(self, kind, shape, dtype=F32, **more):
        number = len(self.buffers)
        name = f"{kind}_{number}"
        self.buffers.append(Buffer(number, kind, tuple(shape), dtype, name, **more))
        return number

    def elementwise(self, reads, write, mode="write"):
        """``write = sum of reads``, all of the shape of `write`, as one flat loop."""
        count = product(self.buffers[write].shape)
        operands = [Operand(b, "read", self.buffers[b].dtype) for b in reads]
        operands.append(Operand(write, mode, self.buffers[write].dtype))
        loads = [Load(n, Access(n, (1,)), F32) for n in range(len(reads))]
        if mode == "update":
            loads.append(Load(len(reads), Access(len(reads), (1,)), F32))
        result = len(loads)
        template = " + ".join(f"{{{n}}}" for n in range(result)) or "{T}(1)"
        made = Compute(result, parse(template), tuple(range(result)), F32)
        body = (*loads, made, Store(Access(len(reads), (1,)), result))
        self.loops("add", (count,), operands, (Loop(0, body),), cost=len(reads) + 1)

    def reduce(self, read, slots, out):
        """``out = sum of read``, over one slot per chunk."""
        (count,) = self.buffers[read].shape
        operands = (
            Operand(read, "read", F32),
            Operand(slots, "write", F32, per_chunk=True, slot=1),
        )
        row = (Load(1, Access(0, (1,)), F32), Accumulate(0, "add", 1, F32))
        store = Store(Access(1, (0,)), 0)
        body = (Initial(0, "add", F32), Loop(0, row), store)
        self.loops("sum", (count,), operands, body)
        maker = len(self.kernels) - 1
        operands = (Operand(slots, "read", F32), Operand(out, "write", F32))
        self.kernels.append(
            FinishKernel("finish", operands, 1, "add", F32, (SITE,), chunks_of=maker)
        )

    def loops(self, name, axes, operands, body, cost=1, **more):
        self.kernels.append(
            LoopKernel(name, axes, tuple(operands), (), body, (SITE,), cost, **more)
        )

    def gemm(self, a, b, c, m, n, k):
        modes = ((a, "read"), (b, "read"), (c, "write"))
        operands = tuple(Operand(buffer, mode, F32) for buffer, mode in modes)
        self.kernels.append(
            GemmKernel(
                "matmul", operands, m, n, k, (False, False), (k, n, n), (0, 0, 0),
                1, (0, 0, 0), 1.0, 0.0, (SITE,),
            )
        )  # fmt: skip

    def schedule(self, commit=None, outputs=(), finite=(), unplanned=()):
        commit = len(self.kernels) if commit is None else commit
        return Schedule(
            tuple(self.buffers), tuple(self.kernels), commit, tuple(outputs),
            tuple(finite), tuple(unplanned),
        )  # fmt: skip


def random_tasks(rng, count, window=10**9, least=4096):
    """Tasks of a random graph, and their sizes; task n writes value n."""
    tasks, sizes = [], []
    for number in range(count):
        nearby = range(max(0, number - window), number)
        reads = sorted(set(rng.choices(nearby, k=rng.randint(1, 3)))) if nearby else ()
        tasks.append(Task(tuple(reads), (number,), tuple(reads)))
        sizes.append(random_size(rng, least))
    return tasks, sizes


def random_chain(rng, count, least=4096):
    """Forward and backward through `count` layers, with weight gradients."""
    tasks, sizes = [], []

    def add(reads, size):
        tasks.append(Task(reads, (len(tasks),), reads))
        sizes.append(size)
        return len(tasks) - 1

    value = add((), random_size(rng, least))
    activations = [value]
    for _ in range(count):
        value = add((value,), random_size(rng, least))
        activations.append(value)
    cotangent = add((value,), sizes[value])
    for value in reversed(activations):
        if rng.random() < 0.7:
            add((add((cotangent, value), random_size(rng, least)),), 0)
        cotangent = add((cotangent, value), sizes[value])
    return tasks, sizes


def random_size(rng, least=4096):
    """Bytes, from `least` on, over two orders of magnitude, some of them round."""
    kind = rng.randrange(3)
    if kind == 0:
        return least * rng.randint(1, 32)
    if kind == 1:
        return rng.randint(least, 16 * least)
    return int(least * 2 ** rng.uniform(0, 8))


def random_lives(rng, count, least=4096):
    """Sizes and lives of the values of a random graph with `count` tasks, ordered."""
    if rng.random() < 0.3:
        tasks, sizes = random_chain(rng, max(1, count // 3), least)
    else:
        tasks, sizes = random_tasks(rng, count, rng.choice((3, 10, 10**9)), least)
    return lives_of(tasks, sizes, order(tasks, sizes))


def lives_of(tasks, sizes, found):
    """(sizes, first, last) of all values that have bytes."""
    first, last = {}, {}
    for step, number in enumerate(found):
        for value in tasks[number].reads + tasks[number].writes:
            first.setdefault(value, step)
            last[value] = step
    values = [value for value in sorted(first) if sizes[value]]
    return (
        [sizes[v] for v in values],
        [first[v] for v in values],
        [last[v] for v in values],
    )


def random_schedule(rng, count):
    """A valid Schedule of elementwise kernels, reductions and an update, all 1-d."""
    b = Builder()
    n = rng.choice((1000, 5000, 200_000))
    source = b.buffer("input", (n,), position=0)
    weight = b.buffer("stored", (n,), leaf=parameter("w", np.zeros(n, np.float32)))
    vectors, scalars = [source, weight], []
    for _ in range(count):
        if rng.random() < 0.3:
            out = b.buffer("temporary", ())
            b.reduce(rng.choice(vectors), b.buffer("slots", ()), out)
            scalars.append(out)
            continue
        out = b.buffer("temporary", (n,))
        b.elementwise(rng.sample(vectors, min(len(vectors), rng.randint(1, 3))), out)
        vectors.append(out)
    result = b.buffer("output", (n,), position=0)
    b.elementwise(vectors[-2:], result)
    commit = len(b.kernels)
    b.elementwise(vectors[2:][-1:], weight, "update")
    outputs = (result, *vectors[2:][-1:])
    return b.schedule(commit, outputs, tuple(scalars[-1:]))


def parameter(name, value):
    """A Parameter with storage of its own."""
    op = Op("parameter", None, None, None, Leaf(), None, list, list)
    attrs = {"name": name, "storage": Storage(value), "trainable": True}
    types = (TensorType(value.shape, value.dtype),)
    return Node(op, (), attrs, types, leaf=Parameter).outputs[0]
