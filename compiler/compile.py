"""The whole way from a Graph to what runs it: PASSES, lowering, SCHEDULE_PASSES.

Both are tuples of stages in the order in which they run, each with its reason there and
the targets that take it; after the last a target makes kernels of the Schedule, and a
Plan for each set of sizes. The reference target takes none: it computes the Graph as it
was built. A Graph is verified after each pass that changed it, a Schedule by the last
of its stages, a Plan when it is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar

from staticgrad.compiler.budget.budget import ArenaLimit, within
from staticgrad.compiler.gemm.product_epilogues import fuse_into_products
from staticgrad.compiler.host.gc_pause import without_collections
from staticgrad.compiler.kernel_ir.chunks import chunking
from staticgrad.compiler.kernel_ir.kernels import site_of
from staticgrad.compiler.kernel_ir.plan import Plan
from staticgrad.compiler.kernel_ir.schedule import Schedule
from staticgrad.compiler.lower.blocked_sums import in_blocks
from staticgrad.compiler.lower.lower import arranged
from staticgrad.compiler.memory.in_place import in_place
from staticgrad.compiler.passes.cancel_moves import cancel_moves
from staticgrad.compiler.passes.channels_last import channels_last
from staticgrad.compiler.passes.cse import merge_common
from staticgrad.compiler.passes.cut_loops import cut_loops
from staticgrad.compiler.passes.cut_sums import cut_sums
from staticgrad.compiler.passes.drop_markers import drop_markers
from staticgrad.compiler.passes.fold_constants import fold_constants
from staticgrad.compiler.passes.fold_updates import fold_updates
from staticgrad.compiler.passes.hoist import hoist
from staticgrad.compiler.passes.merge_loops import merge_loops
from staticgrad.compiler.passes.pick import pick
from staticgrad.compiler.passes.resolve_mode import resolve_mode
from staticgrad.compiler.passes.scatter_into import scatter_into
from staticgrad.compiler.passes.shift_stacks import shift_stacks
from staticgrad.compiler.passes.simplify import simplify
from staticgrad.compiler.passes.sink_into_loops import sink_into_loops
from staticgrad.compiler.passes.sink_slices import sink_slices
from staticgrad.compiler.passes.stabilise import stabilise
from staticgrad.compiler.passes.trim_bodies import trim_bodies
from staticgrad.compiler.passes.unroll_windows import all_taps, taps
from staticgrad.compiler.passes.widen import widen
from staticgrad.compiler.runtime.explanation import Change
from staticgrad.compiler.runtime.target import Target
from staticgrad.compiler.runtime.targets.cpu_target import CpuTarget
from staticgrad.compiler.runtime.targets.reference import needed
from staticgrad.compiler.runtime.targets.reference_target import ReferenceTarget
from staticgrad.compiler.verify.size_requirements import require, requiring, suit
from staticgrad.compiler.verify.verify_plan import verify_plan
from staticgrad.compiler.verify.verify_schedule import trial_size, verify_schedule
from staticgrad.errors import CompilerBug
from staticgrad.ir.graph import Graph
from staticgrad.ir.lazy_module import Later
from staticgrad.ir.node import Node
from staticgrad.ir.verify_graph import verify_graph

if TYPE_CHECKING:
    from staticgrad.compiler.cuda.device import Device
    from staticgrad.compiler.runtime.targets import cuda_target
else:
    cuda_target = Later("staticgrad.compiler.runtime.targets.cuda_target")

Mode: TypeAlias = Literal["train", "eval"]
TargetName: TypeAlias = Literal["cpu", "cuda", "reference"]
T = TypeVar("T")

CPU, CUDA = ("cpu",), ("cuda",)


@dataclass(frozen=True, slots=True)
class Stage(Generic[T]):
    """One step from a T to a T: `run`, with the reason why it stands where it does.

    `targets` take it. Where it `takes` a setting, `run` has that as second argument,
    and a request without the setting skips it.
    """

    run: Callable[..., T]
    reason: str
    targets: tuple[str, ...] = (*CPU, *CUDA)
    takes: str = ""


Observer: TypeAlias = Callable[[Stage[Any], Any, Any], None]


def verified(schedule: Schedule, verify: Callable[[Schedule], None]) -> Schedule:
    """`schedule`, which `verify` accepts."""
    verify(schedule)
    return schedule


PASSES: tuple[Stage[Graph], ...] = (
    Stage(merge_loops, "bodies are compared by identity; all that follows makes new"),
    Stage(resolve_mode, "what the other mode computes is not looked at", takes="mode"),
    Stage(drop_markers, "gradients are made by now; markers hide patterns"),
    Stage(channels_last, "transposes of images meet, so that the next cancels them"),
    Stage(cancel_moves, "moves hide patterns from every later rule"),
    Stage(fold_constants, "rules look for numbers"),
    Stage(simplify, "fewer nodes for all that follows"),
    Stage(stabilise, "after folding, which shows the 1 of log(1 + x)"),
    Stage(drop_markers, "stabilise marks the maxima that it subtracts"),
    Stage(pick, "after differentiation, which would make a scatter of a load"),
    Stage(taps, "what it makes is simplified and fused like the rest", CPU),
    Stage(all_taps, "as taps, without kernels for convolutions", CUDA),
    Stage(cancel_moves, "rules above leave reshapes and broadcasts"),
    Stage(cut_sums, "after rules that merge pads and sums; it makes slices"),
    Stage(sink_into_loops, "ahead of the next: steps often slice what they read"),
    Stage(sink_slices, "what is sliced need not be stored"),
    Stage(cancel_moves, "slices of slices and of broadcasts"),
    Stage(hoist, "what it moves is simplified where it goes"),
    Stage(cancel_moves, "weights that are transposed inside and outside"),
    Stage(merge_common, "x + x is one of x only if both are one node"),
    Stage(simplify, "forms that the rules above uncovered"),
    Stage(fold_constants, "numbers that the rules above made"),
    Stage(sink_into_loops, "sums of what is equal are cheap products by now"),
    Stage(shift_stacks, "results of bodies are one tensor by now; next drops stacks"),
    Stage(trim_bodies, "nodes above are equal by now, more of those below will be"),
    Stage(merge_common, "equal nodes have one form by now"),
    Stage(widen, "no rule sees its casts; merged they would live to the backward"),
    Stage(scatter_into, "a late one: it counts who needs a gradient"),
    Stage(fold_updates, "late: it counts who needs a gradient"),
    Stage(cut_loops, "no rule has to see through the loops that it makes", CUDA),
)

SCHEDULE_PASSES: tuple[Stage[Schedule], ...] = (
    Stage(fuse_into_products, "what stays in registers needs no memory below", CPU),
    Stage(within, "for a budget: what runs again is placed below", takes="limit"),
    Stage(in_place, "when it is known what runs; it looks for plain accesses"),
    Stage(in_blocks, "last: it hides accesses and changes no buffer", CPU),
    Stage(verified, "what is proved is what runs", takes="verify"),
)

LOWERING: Stage[Any] = Stage(
    arranged, "between both: kernels, in the order they run in"
)


def device_of(target: TargetName) -> Device | None:
    """The device for which executables of a target are made now, if it is a GPU's."""
    return cuda_target.device_in_use() if target == "cuda" else None


@dataclass(frozen=True, slots=True)
class Request:
    """The settings of a compilation beside the Graph.

    `checked` are the numbers of outputs that have to be finite before an update is
    applied, `budget` the most bytes of the arena; `device` is the GPU of "cuda".
    """

    mode: Mode = "eval"
    target: TargetName = "cpu"
    checked: tuple[int, ...] = ()
    verify: bool = True
    poison: bool = False
    budget: int | None = None
    device: Device | None = None


@without_collections()
def compiled(graph: Graph, request: Request) -> Target:
    """The target that computes `graph`."""
    nodes = requiring(needed(graph.roots, request.mode))
    demand = partial(require, nodes)
    checked = request.checked
    if request.target == "reference":
        return ReferenceTarget(graph, request.mode, checked, demand)
    way = _Way(graph, request, nodes)
    schedule = way.schedule()
    fit = None if request.budget is None else way.schedule
    sites = [site_of(graph.outputs[n].node) for n in checked]
    if request.device is not None:
        device = request.device
        return cuda_target.CudaTarget(
            schedule, way.verify_plan, device, sites, demand, fit
        )
    poison = request.poison
    return CpuTarget(schedule, way.verify_plan, poison, sites, demand, fit)


def changes(
    graph: Graph, request: Request, sizes: Mapping[str, int] | None
) -> list[Change]:
    """Run `graph` through all stages once more and list the changes of each.

    Stages that need sizes, those for a memory budget, are left out without `sizes`.
    """
    found: list[Change] = []

    def observe(stage: Stage[Any], before: Any, after: Any) -> None:
        found.append(Change(stage.run.__name__, stage.reason, before, after))

    if request.target != "reference":
        nodes = requiring(needed(graph.roots, request.mode))
        _Way(graph, request, nodes, observe).schedule(sizes, observe)
    return found


def optimise(
    graph: Graph,
    mode: Mode,
    target: str = "cpu",
    observe: Observer = lambda *_: None,
) -> Graph:
    """Optimise `graph` for one mode: less work and stable forms, the same numbers.

    ``observe(stage, before, after)`` is called after each pass. Raises CompilerBug
    where a pass breaks a rule of verify_graph or changes a type.
    """
    known: set[Node] = set()

    def check(stage: Stage[Graph], before: Graph, after: Graph) -> None:
        verify_graph(after, known)
        _check_types_kept(stage.run.__name__, before, after)

    verify_graph(graph, known)
    return _through(PASSES, graph, target, {"mode": mode}, observe, check)


class _Way:
    """The way of one graph, as far as it is one for all sizes, and on from there."""

    def __init__(
        self,
        graph: Graph,
        request: Request,
        requirements: Sequence[Node],
        observe: Observer = lambda *_: None,
    ) -> None:
        found = optimise(graph, request.mode, request.target, observe)
        changing = [(leaf, new) for leaf, new in found.updates if new is not leaf]
        final = Graph.closed(found.inputs, found.outputs, changing)
        self._arranged = arranged(final, [final.outputs[n] for n in request.checked])
        observe(LOWERING, final, self._arranged)
        self._request = request
        early = suit(requirements, trial_size)
        self._verify = (
            partial(verify_schedule, graph=final, kernels=early)
            if request.verify
            else None
        )
        self.verify_plan: Callable[[Plan], None] = (
            partial(verify_plan, kernels=not early) if request.verify else _unverified
        )

    def schedule(
        self,
        sizes: Mapping[str, int] | None = None,
        observe: Observer = lambda *_: None,
    ) -> Schedule:
        """The Schedule that a target runs; with `sizes` within the budget for them."""
        request, limit = self._request, None
        if request.budget is not None and sizes is not None:
            cut = chunking if request.device is None else cuda_target.CudaTarget.cutting
            limit = ArenaLimit(sizes, request.budget, cut)
        settings = {"limit": limit, "verify": self._verify}
        return _through(
            SCHEDULE_PASSES, self._arranged, request.target, settings, observe
        )


def _through(
    stages: Sequence[Stage[T]],
    value: T,
    target: str,
    settings: Mapping[str, Any],
    observe: Observer,
    check: Callable[[Stage[T], T, T], None] = lambda *_: None,
) -> T:
    """`value` after the stages that `target` takes; `check` looks at what changed."""
    idle: set[Callable[..., T]] = set()  # would leave this very value as it is again
    for stage in stages:
        given = [settings[stage.takes]] if stage.takes else []
        if target not in stage.targets or None in given:
            continue
        after = value if stage.run in idle else stage.run(value, *given)
        idle.add(stage.run)
        if after is not value:
            check(stage, value, after)
            idle.clear()
        observe(stage, value, after)
        value = after
    return value


def _unverified(_: Plan) -> None:
    """Accept any."""


def _check_types_kept(name: str, before: Graph, after: Graph) -> None:
    for old, new in zip(before.roots, after.roots, strict=True):
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            raise CompilerBug(
                f"{name} requires the types of outputs kept, got {new.type} for"
                f" {old.type}"
            )
    if [t.node for t in before.inputs] != [t.node for t in after.inputs]:
        raise CompilerBug(f"{name} requires the inputs kept")
