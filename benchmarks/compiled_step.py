"""Stages of ``sg.compile``, timed one by one."""

from collections.abc import Sequence

from benchmarks.built import built
from benchmarks.workloads.workload import Arrays, Workload
from staticgrad.compiler.codegen.kernel_source import foreign_names
from staticgrad.compiler.codegen.loops.loop_source import kernel_source
from staticgrad.compiler.codegen.native_compile import ir_of
from staticgrad.compiler.codegen.text_emitter import canonical
from staticgrad.compiler.compile import optimise
from staticgrad.compiler.gemm import blas, tile_driver
from staticgrad.compiler.gemm.product_leaves import (
    COPY,
    DOTS,
    TILES,
    TRANSPOSE,
    leaf_address,
)
from staticgrad.compiler.gemm.small_kernels import (
    BY_DOTS,
    BY_ROWS,
    TILED,
    TURNED,
    small_address,
)
from staticgrad.compiler.host import numba_internals as internals
from staticgrad.compiler.kernel_ir.kernels import LoopKernel
from staticgrad.compiler.lower.lower import lower
from staticgrad.compiler.memory.planner import plan
from staticgrad.compiler.runtime import vm
from staticgrad.compiler.runtime.executable import Executable
from staticgrad.compiler.runtime.targets.cpu_target import CpuTarget
from staticgrad.compiler.verify.verify_plan import verify_plan
from staticgrad.compiler.verify.verify_schedule import verify_schedule
from staticgrad.ir.graph import Graph
from staticgrad.ir.types import FLOAT32


def compiled_step(workload: Workload, p: Arrays, d: Arrays, watch) -> list:
    """Run once; (name, cached, seconds) of each kernel."""
    made = built(workload, p, d, watch.lap)
    inputs = list(made.inputs.values())
    graph = Graph.closed(inputs, made.outputs, made.updates)
    graph = optimise(graph, "train")
    changing = [(leaf, new) for leaf, new in graph.updates if new is not leaf]
    graph = Graph.closed(graph.inputs, graph.outputs, changing)
    watch.lap("passes")
    schedule = lower(graph)
    watch.lap("lower")
    verify_schedule(schedule, graph)
    watch.lap("verify schedule")
    load(watch)
    target = CpuTarget(schedule, verify_plan)
    watch.lap("write and compile kernels")
    target.pool({})
    watch.lap("plan, verify, program")
    f = Executable(target, inputs, list, len(made.outputs))
    bound = f.bind(**{leaf.name: (p | d)[leaf.name] for leaf in inputs})
    watch.lap("bind")
    bound()
    watch.lap("first run")
    loops = [k for k in schedule.kernels if isinstance(k, LoopKernel)]
    compile_again(loops, watch)
    plan(schedule, {})
    watch.lap("plan (again)")
    return [(_title(n.source), n.cached, n.seconds) for n in target.code.natives]


def compile_again(loops: Sequence[LoopKernel], watch) -> None:
    """Time the stages for each distinct kernel that no cache has.

    After the first run, so that this has nothing prepared: what is done the first time
    in a process counts there.
    """
    texts = {canonical(kernel_source(kernel).text): kernel for kernel in loops}
    watch.lap("write all sources (again)")
    modules = []
    for number, (text, kernel) in enumerate(texts.items()):
        if not foreign_names(kernel):
            modules.append(ir_of(text, f"again_{number}"))
    watch.lap("translate (again)")
    codes = [internals.compile_module(module) for module in modules]
    watch.lap("LLVM (again)")
    for code in codes:
        internals.load_object_code(code)
    watch.lap("link (again)")


def load(watch) -> None:
    """Time the code shared by all graphs; parts of products are compiled later."""
    vm.load()
    watch.lap("load the machine")
    tile_driver.kernel_address()
    watch.lap("load products")


def load_all(watch) -> None:
    """All that is compiled once per machine, needed or not."""
    load(watch)
    load_pieces()


def load_pieces() -> None:
    """The pieces of products of float32."""
    blas.kernel_address()
    for leaf in (DOTS, TILES, TRANSPOSE, COPY):
        leaf_address(leaf, FLOAT32.itemsize)
    for kernel in (BY_ROWS, BY_DOTS, TURNED, TILED):
        small_address(kernel, FLOAT32.itemsize)


def _title(source: str) -> str:
    """The first line of a kernel's source, which names it."""
    return source.splitlines()[0].lstrip("# ")
