"""The steps table: staticgrad against its peers, and against the machine.

For each workload all engines are started, their results compared, and then measured in
alternating rounds, so that what else the machine does hits all alike. The least counts.
"""

import sys
from dataclasses import asdict, dataclass, field

import numpy as np

from benchmarks.engines import installed, missing_peers, package
from benchmarks.floor import floor
from benchmarks.processes import Worker, WorkerError
from benchmarks.tables import duration, ratio, table
from benchmarks.workloads import ALL
from benchmarks.workloads.workload import Workload

TOLERANCE = {"sgd": 2e-3, "adam": 2e-2, "gradient": 1e-4, "value": 1e-4}
"""Of the norm: of the change of parameters, or of the result."""

FAR_BEHIND = 4


@dataclass(slots=True)
class Row:
    """Seconds by engine of one workload on so many threads.

    `floor` is max(flops / peak, bytes / bandwidth). `notes` tell what went wrong.
    """

    workload: str
    threads: int
    floor: float
    call: dict[str, float] = field(default_factory=dict)
    loop: dict[str, float] = field(default_factory=dict)
    first_call: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def ours(self) -> float:
        """The least of loop and call."""
        return self._least(("staticgrad",))

    def best_peer(self) -> str:
        """The engine that is fastest beside ours."""
        peers = [e for e in self.call if e != "staticgrad"]
        return min(peers, key=lambda e: self._least((e,)))

    def ratio(self, what: str) -> float | None:
        """Return the speedup over the best peer: "loop", "call" or "best".

        The loop is compared with the best that any peer has, a call with peers' calls.
        """
        peers = [e for e in self.call if e != "staticgrad"]
        if not peers:
            return None
        if what == "call":
            return min(self.call[e] for e in peers) / self.call["staticgrad"]
        ours = self.loop["staticgrad"] if what == "loop" else self.ours
        return self._least(peers) / ours

    def _least(self, engines) -> float:
        found = [t[e] for e in engines for t in (self.call, self.loop) if e in t]
        return min(found)


def measure(
    names: list[str], threads: tuple[int, ...], rounds: int, seconds: float,
    scale: float = 1.0, engines: list[str] | None = None, progress=print,
) -> list[Row]:  # fmt: skip
    """Rows of the workloads called `names`, or of all."""
    rows = []
    for name in names or list(ALL):
        for count in threads:
            able = [e for e in engines or installed() if can_run(e, ALL[name])]
            row = _row(ALL[name], count, rounds, seconds, scale, able)
            rows.append(row)
            progress(_line(row))
    return rows


def can_run(engine: str, workload: Workload) -> bool:
    """Whether the workload is written for the library of an engine."""
    library = package(engine)
    return {"staticgrad": "ours"}.get(library, library) in workload.losses


def _row(workload, threads, rounds, seconds, scale, engines) -> Row:
    row = Row(workload.name, threads, floor(workload, threads, scale, seconds))
    workers = _started(workload, threads, scale, engines, row)
    try:
        for _ in range(rounds):
            for worker in workers:
                if not hopeless(worker.best("call"), workers[0].best("call"), seconds):
                    worker.measure(seconds)
    finally:
        for worker in workers:
            worker.close()
    for worker in workers:
        row.first_call[worker.name] = worker.first_call
        for what, found in (("call", row.call), ("loop", row.loop)):
            if (best := worker.best(what)) is not None:
                found[worker.name] = best
    return row


def _started(workload, threads, scale, engines, row) -> list[Worker]:
    """Workers whose results agree with ours, which comes first."""
    workers: list[Worker] = []
    for engine in engines:
        try:
            worker = Worker(workload.name, engine, threads, scale)
        except WorkerError as error:
            if engine == "staticgrad":
                raise
            row.notes.append(str(error).strip())
            continue
        workers.append(worker)
        off = difference(workload, workers[0].result(), worker.result(), scale)
        if off > TOLERANCE[workload.kind]:
            row.notes.append(f"{engine}: results differ by {off:.1e}; not shown")
            workers.pop().close()
    return workers


def hopeless(theirs: float | None, ours: float | None, seconds: float) -> bool:
    """Whether more rounds would cost much and change nothing."""
    return theirs is not None and theirs > max(seconds, FAR_BEHIND * (ours or 0.0))


def difference(workload: Workload, ours, theirs, scale: float) -> float:
    """The largest relative difference of an array, in the norm."""
    first = [np.zeros(())] * len(ours)
    if workload.trains:
        first = list(workload.arrays(scale)[0].values())
    found = [
        float(
            np.linalg.norm(np.ravel(a - b))
            / (np.linalg.norm(np.ravel(a - start)) + 1e-30)
        )
        for start, a, b in zip(first, ours, theirs, strict=True)
    ]
    return max(found) if np.isfinite(found).all() else float("inf")


def _line(row: Row) -> str:
    found = ", ".join(f"{e} {duration(s)}" for e, s in row.call.items())
    return f"  {row.workload}, {row.threads} threads: {found}"


def render(rows: list[Row]) -> str:
    """The table, goals and notes; only rows that have a peer."""
    shown = [row for row in rows if row.ratio("call") is not None]
    header = (
        "workload", "threads", "loop", "call", "best peer", "its loop", "its call",
        "loop x", "call x", "goal", "floor", "/ floor", "compile", "jax's",
    )  # fmt: skip
    parts = [table(header, map(_cells, shown))] if shown else []
    parts += _speedups(rows)
    parts += [f"no peer installed: {peer}" for peer in missing_peers()]
    parts += [f"{row.workload}: {note}" for row in rows for note in row.notes]
    return "\n".join(parts)


def _cells(row: Row) -> tuple[str, ...]:
    peer = row.best_peer()
    return (
        ALL[row.workload].title, str(row.threads), duration(row.loop["staticgrad"]),
        duration(row.call["staticgrad"]), peer, duration(row.loop.get(peer)),
        duration(row.call[peer]), ratio(row.ratio("loop")), ratio(row.ratio("call")),
        _goals(row), duration(row.floor), ratio(row.ours / row.floor),
        duration(row.first_call["staticgrad"]), duration(row.first_call.get("jax")),
    )  # fmt: skip


def _goals(row: Row) -> str:
    found = []
    for goal in ALL[row.workload].goals:
        reached = row.ratio(goal.what)
        if goal.threads == row.threads and reached is not None:
            mark = "ok" if reached >= goal.ratio else "MISSED"
            found.append(f"{goal.what} {goal.ratio:g} {mark}")
    return ", ".join(found) or "-"


def _speedups(rows: list[Row]) -> list[str]:
    """Return the speedup of two threads over one, where both are measured."""
    alone = {row.workload: row for row in rows if row.threads == 1}
    gains = [
        f"{row.workload} {ratio(alone[row.workload].ours / row.ours)}"
        for row in rows
        if row.threads > 1 and row.workload in alone
    ]
    return [f"staticgrad, more threads against one: {', '.join(gains)}"] * bool(gains)


def as_json(rows: list[Row]) -> list[dict]:
    """For results/."""
    return [asdict(row) for row in rows]


def main(options) -> list[dict]:
    """Measure and print."""
    rows = measure(
        options.names, tuple(options.threads), options.rounds, options.seconds,
        options.scale, progress=lambda line: print(line, file=sys.stderr),
    )  # fmt: skip
    print(render(rows))
    return as_json(rows)
