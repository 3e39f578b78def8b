"""Text of ``explain()``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from staticgrad.compiler.kernel_ir.kernels import GemmKernel, LoopKernel
from staticgrad.compiler.kernel_ir.plan import Plan
from staticgrad.compiler.kernel_ir.schedule import Schedule
from staticgrad.compiler.runtime import threads
from staticgrad.compiler.runtime.failures import foreign
from staticgrad.compiler.runtime.native_code import NativeCode
from staticgrad.ir.graph import Graph, with_nested
from staticgrad.ir.node import Input
from staticgrad.ir.size import evaluate

if TYPE_CHECKING:
    from staticgrad.compiler.cuda.cuda_code import CudaCode


Sizes: TypeAlias = Mapping[str, int] | None


@dataclass(frozen=True, slots=True)
class Change:
    """The input and the output of a stage of the compiler, with the stage's reason."""

    name: str
    reason: str
    before: Graph | Schedule
    after: Graph | Schedule


def explain_changes(changes: Sequence[Change], sizes: Sizes) -> str:
    """Describe what each stage of the compiler changed, in order."""
    lines = ["passes that changed the graph, each verified after it:"]
    for change in changes:
        before, after = change.before, change.after
        if isinstance(after, Graph):
            assert isinstance(before, Graph)
            text = "" if after is before else _graph_change(before, after)
        elif isinstance(before, Graph):
            lines += ["  " + _counted(before), "from the graph to a schedule:"]
            text = _inventory(after, sizes)
        elif change.name == "verified":
            text = "every rule of a schedule holds"
        else:
            text = _schedule_change(before, after, sizes)
        if text:
            lines.append(f"  {change.name}: {text}; {change.reason}")
    return "\n".join(lines if changes else ["no stages: the graph runs as it is"])


def _graph_change(before: Graph, after: Graph) -> str:
    old, new = _ops(before), _ops(after)
    names = sorted(old | new, key=lambda name: (-abs(new[name] - old[name]), name))
    different = [f"{n} {old[n]} -> {new[n]}" for n in names if old[n] != new[n]]
    counts = f"{old.total()} -> {new.total()} nodes"
    return f"{counts} ({', '.join(different)})" if different else counts


def _ops(graph: Graph) -> Counter[str]:
    """Count the nodes of each op, those of bodies too."""
    return Counter(node.op.name for node in with_nested(graph.nodes))


def _counted(graph: Graph) -> str:
    found = _ops(graph)
    return f"{found.total()} nodes: " + ", ".join(
        f"{name} x {count}" for name, count in sorted(found.items())
    )


def _schedule_change(before: Schedule, after: Schedule, sizes: Sizes) -> str:
    if after is before:
        return "nothing"
    old = set(map(id, before.kernels))
    new = sum(id(kernel) not in old for kernel in after.kernels)
    pairs = zip(_counts(before, sizes), _counts(after, sizes), strict=True)
    counts = [f"{a} -> {b} {what}" for (a, what), (b, _) in pairs]
    return ", ".join([f"{counts[0]} ({new} changed)", *counts[1:]])


def _inventory(schedule: Schedule, sizes: Sizes) -> str:
    return ", ".join(f"{count} {what}" for count, what in _counts(schedule, sizes))


def _counts(schedule: Schedule, sizes: Sizes) -> list[tuple[int, str]]:
    """Kernels and temporaries, and the bytes of those where sizes are known."""
    own = [b for b in schedule.buffers if b.kind in ("temporary", "slots")]
    counts = [(len(schedule.kernels), "kernels"), (len(own), "temporaries")]
    if sizes is not None:
        total = sum(evaluate(b.elements, sizes) * b.dtype.itemsize for b in own)
        counts.append((total, "bytes"))
    return counts


def explain(
    code: NativeCode, writes: bool, planned: Collection[Plan], inputs: Sequence[Input],
    notes: Sequence[str],
) -> str:  # fmt: skip
    """Describe `code` for the cpu: kernels, what was compiled, what was planned."""
    lines = [f"target cpu, {threads.get_num_threads()} threads{_layer()}"]
    lines += [f"input {leaf.name}: {leaf.type}" for leaf in inputs]
    lines += _kernel_lines(code, writes)
    lines += _plan_lines(planned)
    lines += [f"note: {note}" for note in notes]
    return "\n".join(lines)


def explain_cuda(
    name: str, code: CudaCode, planned: Collection[Plan], inputs: Sequence[Input],
    notes: Sequence[str],
) -> str:  # fmt: skip
    """Describe the launches of `code`, and how each is spread over device `name`."""
    lines = [f"target cuda, {name}"]
    lines += [f"input {leaf.name}: {leaf.type}" for leaf in inputs]
    sources = code.sources
    different = {source.canonical for source in sources if source is not None}
    lines.append(f"{len(sources)} kernels, {len(different)} different sources")
    for number, (kernel, source) in enumerate(zip(code.loops, sources, strict=True)):
        if number == code.schedule.commit:
            lines.append("  ---- commit: nothing below can fail ----")
        how = "cuBLAS" if isinstance(kernel, GemmKernel) else "on the host"
        if source is not None and source.mapping is not None:
            how = f"by {source.mapping.worker}"
        lines.append(f"  {number}: {kernel.name}{_axes(kernel)}  {how}")
        lines += _calls_of_python(kernel)
    plans = [line for p in planned for line in (_plan_line(p), *_again_lines(p))]
    lines += [f"  {line}" for line in dict.fromkeys(plans)]
    return "\n".join(lines + [f"note: {note}" for note in notes])


def _layer() -> str:
    name = threads.layer()
    return f" ({name})" if name else ""


def _kernel_lines(code: NativeCode, writes: bool) -> list[str]:
    natives = code.natives
    different = {native.address: native for native in reversed(natives)}.values()
    compiled = [native for native in different if not native.cached]
    seconds = sum(native.seconds for native in natives)
    schedule = code.schedule
    lines = [
        f"{len(schedule.kernels)} kernels, {len(different)} different: "
        f"{len(compiled)} compiled, {len(different) - len(compiled)} from the cache, "
        f"in {seconds:.3f} s"
    ]
    remaining = iter(natives)
    for number, kernel in enumerate(code.loops):
        if number == schedule.commit and writes:
            lines.append("  ---- commit: nothing below can fail ----")
        if isinstance(kernel, GemmKernel):
            how = f"product of {kernel.m} x {kernel.k} and {kernel.k} x {kernel.n}"
        else:
            native = next(remaining)
            how = native.reason if native.cached else f"compiled ({native.reason})"
        lines.append(f"  {number}: {kernel.name}{_axes(kernel)}  {how}")
        lines += _calls_of_python(kernel)
    return lines


def _calls_of_python(kernel: LoopKernel | GemmKernel) -> list[str]:
    """Return lines with the cost so far of the Python functions that a kernel calls."""
    lines: list[str] = []
    for function in foreign(kernel):
        target = function.target
        if target is not None:
            mean = 1e6 * target.seconds / max(target.calls, 1)
            lines.append(
                f"     calls Python and takes the GIL: {target.calls} calls, "
                f"{mean:.1f} us each"
            )
    return lines


def _axes(kernel: LoopKernel | GemmKernel) -> str:
    if isinstance(kernel, GemmKernel):
        return ""
    return "[" + ", ".join(map(str, kernel.axes)) + "]"


def _plan_lines(plans: Collection[Plan]) -> list[str]:
    many = "plan" if len(plans) == 1 else "plans"
    lines = [f"{len(plans)} {many}, each without recompilation:"] if plans else []
    counts = Counter(_plan_line(plan) for plan in plans)
    lines += [f"  {line}" for line in counts]
    return lines + [f"  {line}" for plan in plans for line in _again_lines(plan)]


def _again_lines(plan: Plan) -> list[str]:
    """Return lines with the kernels that are recomputed for a memory budget."""
    kernels = plan.schedule.kernels
    counts = Counter(kernels[position].name for position in plan.schedule.again)
    if not counts:
        return []
    what = ", ".join(f"{name} x {count}" for name, count in counts.items())
    total = len(kernels) - sum(counts.values())
    return [f"computed again: {sum(counts.values())} kernels beside {total}: {what}"]


def _plan_line(plan: Plan) -> str:
    sizes = ", ".join(f"{name}={value}" for name, value in plan.values) or "static"
    proof = f" ({plan.proof})" if plan.proof else ""
    return (
        f"{sizes}: arena {plan.arena_bytes} bytes, lower bound "
        f"{plan.lower_bound_bytes}{proof}, unplanned {plan.unplanned_bytes}"
    )
