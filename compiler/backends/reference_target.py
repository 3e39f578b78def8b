"""The reference target: reference.py behind the interface of the cpu target."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from staticgrad.compiler.backends import reference
from staticgrad.compiler.failures import not_finite
from staticgrad.ir.graph import Graph

Array = npt.NDArray[Any]


class ReferenceTarget:
    """A Graph as built, computed node by node with NumPy.

    `checked` are the numbers of outputs that have to be finite before an update is
    applied.
    """

    name = "reference"

    def __init__(
        self,
        graph: Graph,
        mode: Literal["train", "eval"],
        checked: Sequence[int] = (),
    ) -> None:
        self.graph = graph
        self.mode: Literal["train", "eval"] = mode
        self._checked = tuple(checked)
        self._writing = threading.Lock()

    def call(self, arrays: Sequence[Array], sizes: Mapping[str, int]) -> list[Array]:
        """Fresh outputs for `arrays`; updates are applied."""
        names = [leaf.name for leaf in self.graph.inputs]
        given = dict(zip(names, arrays, strict=True))
        with self._writing:
            outputs, updates = reference.run(self.graph, self.mode, given)
            self._check_finite(outputs)
            for leaf, new in updates:
                np.copyto(leaf.storage.array, new)
        return [np.array(output) for output in outputs]

    def bind(self, arrays: Sequence[Array], sizes: Mapping[str, int]) -> BoundGraph:
        """The graph with its arguments fixed."""
        return BoundGraph(self, arrays, sizes)

    def _check_finite(self, outputs: Sequence[Array]) -> None:
        for number in self._checked:
            tensor, value = self.graph.outputs[number], outputs[number]
            if not np.isfinite(value).all():
                raise not_finite(tensor.op.name, float(value), tensor.source)


class BoundGraph:
    """A graph with fixed arguments, which are read anew at each run."""

    def __init__(
        self, target: ReferenceTarget, arrays: Sequence[Array], sizes: Mapping[str, int]
    ) -> None:
        self._target = target
        self._arrays = tuple(arrays)
        self._sizes = sizes

    def run(self, times: int) -> list[Array]:
        """The outputs of the last of `times` runs."""
        outputs: list[Array] = []
        for _ in range(times):
            outputs = self._target.call(self._arrays, self._sizes)
        return outputs
