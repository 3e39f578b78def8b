"""Reference target: reference.py behind the interface of the cpu target."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from staticgrad.compiler.host.locks import fork_safe_lock
from staticgrad.compiler.runtime.bound import CopyingRunner
from staticgrad.compiler.runtime.failures import not_finite
from staticgrad.compiler.runtime.target import Target
from staticgrad.compiler.runtime.targets import reference
from staticgrad.compiler.verify.size_requirements import accept
from staticgrad.ir.graph import Graph
from staticgrad.ir.node import Input
from staticgrad.ir.size import evaluate

Array = npt.NDArray[Any]


class ReferenceTarget(Target):
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
        require: Callable[[Mapping[str, int]], None] = accept,
    ) -> None:
        self.graph = graph
        self.mode: Literal["train", "eval"] = mode
        self._checked = tuple(checked)
        self._require = require
        self._writing = fork_safe_lock()

    def call(self, arrays: Sequence[Array], sizes: Mapping[str, int]) -> list[Array]:
        """Run on `arrays` into fresh outputs; apply updates."""
        self._require(sizes)
        names = [leaf.name for leaf in self.graph.inputs]
        given = dict(zip(names, arrays, strict=True))
        with self._writing:
            outputs, updates = reference.run(self.graph, self.mode, given)
            self._check_finite(outputs)
            for leaf, new in updates:
                np.copyto(leaf.storage.array, new)
        return [np.array(output) for output in outputs]

    def bind(self, arrays: Sequence[Array], sizes: Mapping[str, int]) -> CopyingRunner:
        """The graph with its arguments fixed, which are read anew at each run."""
        found = self.graph.outputs
        shapes = [tuple(evaluate(dim, sizes) for dim in t.shape) for t in found]
        dtypes = [t.dtype for t in found]
        call = partial(self.call, tuple(arrays), sizes)
        return CopyingRunner(call, zip(shapes, dtypes, strict=True))

    def explain(self, inputs: Sequence[Input], notes: Sequence[str]) -> str:
        """That there is nothing to see."""
        return "\n".join(["target reference: node by node with NumPy", *notes])

    def _check_finite(self, outputs: Sequence[Array]) -> None:
        for number in self._checked:
            tensor, value = self.graph.outputs[number], outputs[number]
            if not np.isfinite(value).all():
                raise not_finite(tensor.op.name, float(value), tensor.source)
