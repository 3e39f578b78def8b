"""Snapshots of a Trainer: leaves, optimiser states, counters and progress.

Parameters keep their names, so other programs can read them; states have the prefix
``state:``, the optimiser's ``optimizer:``, arrays of the last run ``run:``, batches
that wait for the rest of their group ``batch:``. Loading checks every name, shape and
dtype before it writes anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from staticgrad.errors import GraphError
from staticgrad.ir.node import Parameter, State, Stored
from staticgrad.ir.source import at, here
from staticgrad.train.run import Run, restored

Array = npt.NDArray[Any]

VERSION = 1
RUN = "run:"
BATCH = "batch:"


def named_leaves(
    leaves: Iterable[Stored], optimizer_states: Mapping[str, State]
) -> dict[str, Stored]:
    """Return a name in the file for every leaf; equal names are numbered."""
    named: dict[str, Stored] = {}
    of_optimizer = set(optimizer_states.values())
    for leaf in leaves:
        if leaf in of_optimizer:
            continue
        prefix = "" if isinstance(leaf, Parameter) else "state:"
        name, number = prefix + leaf.name, 1
        while name in named:
            name, number = f"{prefix}{leaf.name}_{number}", number + 1
        named[name] = leaf
    for name, state in optimizer_states.items():
        named[f"optimizer:{name}"] = state
    return named


def taken(
    leaves: Mapping[str, Stored], epochs: int, run: Run | None,
    waiting: Sequence[Mapping[str, Array]],
) -> tuple[dict[str, Array], dict[str, Any]]:  # fmt: skip
    """Return the arrays and facts to save."""
    arrays = {name: leaf.value for name, leaf in leaves.items()}
    facts: dict[str, Any] = {"version": VERSION, "epochs": epochs, "run": None}
    if run is not None:
        run_arrays, facts["run"] = run.saved()
        arrays |= {RUN + name: array for name, array in run_arrays.items()}
    for number, batch in enumerate(waiting):
        arrays |= {f"{BATCH}{number}:{name}": array for name, array in batch.items()}
    return arrays, facts


def batches(arrays: Mapping[str, Array]) -> list[dict[str, Array]]:
    """Return the batches that were pending when `arrays` were saved."""
    found: dict[int, dict[str, Array]] = {}
    for key in sorted(key for key in arrays if key.startswith(BATCH)):
        _, number, name = key.split(":")
        found.setdefault(int(number), {})[name] = arrays[key]
    return [found[number] for number in sorted(found)]


def put_back(
    leaves: Mapping[str, Stored], arrays: Mapping[str, Array], facts: Mapping[str, Any]
) -> tuple[int, Run | None]:
    """Write the leaves; returns the epochs so far and the last run."""
    if facts.get("version") != VERSION:
        raise GraphError(
            f"load requires version {VERSION} of the file, got {facts.get('version')}; "
            f"save it again with this version of staticgrad{at(here())}"
        )
    saved = {name: a for name, a in arrays.items() if not name.startswith((RUN, BATCH))}
    _require_same(leaves, saved)
    run = None
    if facts["run"] is not None:
        size = len(RUN)
        inner = {n[size:]: a for n, a in arrays.items() if n.startswith(RUN)}
        run = restored(inner, facts["run"])
    for name, leaf in leaves.items():
        leaf.value = saved[name]
    return int(facts["epochs"]), run


def _require_same(leaves: Mapping[str, Stored], saved: Mapping[str, Array]) -> None:
    missing = [name for name in leaves if name not in saved]
    unknown = [name for name in saved if name not in leaves]
    if missing or unknown:
        raise GraphError(
            f"load requires the leaves of this trainer, got {len(saved)} arrays; "
            f"missing: {missing}, unknown: {unknown}{at(here())}"
        )
    for name, leaf in leaves.items():
        array = saved[name]
        if (array.shape, array.dtype) != (leaf.shape, leaf.dtype):
            raise GraphError(
                f"load requires {leaf.type} for {name}, got "
                f"{np.dtype(array.dtype).name}{list(array.shape)}; "
                f"build the trainer that was saved{at(here())}"
            )
