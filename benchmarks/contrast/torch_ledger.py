"""A ledger kept by PyTorch's dispatcher: every operation that reaches a kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.contrast.ledger import Ledger

VIEWS = ("view", "t", "transpose", "expand", "detach", "unbind", "select", "alias")


class _Counting(TorchDispatchMode):
    """Counts what is dispatched; views read and write nothing."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self.ledger = ledger

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in VIEWS:
            return out
        read = sum(map(_size, _tensors((args, kwargs))))
        self.ledger.ran(read, sum(map(_size, _tensors(out))))
        for tensor in _tensors(out):
            storage = tensor.untyped_storage()
            self.ledger.allocated(tensor, storage.data_ptr(), storage.nbytes())
        return out


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor))


def _size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def counted(step: Callable[[], Any]) -> Ledger:
    """Return the costs of one step."""
    step()
    ledger = Ledger()
    with _Counting(ledger):
        step()
    return ledger
