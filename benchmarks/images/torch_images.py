"""PyTorch: eager calls of what its autograd calls, in both memory formats."""

import torch

from benchmarks.images.cases import Case

FORMATS = {"first": torch.contiguous_format, "last": torch.channels_last}


def ways(case: Case, what: str, threads: int) -> dict:
    """Both memory formats."""
    torch.set_num_threads(threads)
    return {layout: _way(case, what, kind) for layout, kind in FORMATS.items()}


def _way(case: Case, what: str, kind) -> tuple:
    x, w, g = (
        torch.from_numpy(a).contiguous(memory_format=kind)
        for a in case.arrays().values()
    )

    def gradient(mask: list[bool]):
        return torch.ops.aten.convolution_backward(
            g, x, w, None, [case.stride] * 2, [case.padding] * 2, [1, 1], False, [0, 0],
            case.groups, mask,
        )  # fmt: skip

    def pooled():
        return torch.ops.aten.max_pool2d_with_indices(x, [2, 2], [2, 2])

    def both():
        y, index = pooled()
        back = torch.ops.aten.max_pool2d_with_indices_backward(
            g, x, [2, 2], [2, 2], [0, 0], [1, 1], False, index
        )
        return y, back

    functions = {
        "forward": lambda: (
            torch.nn.functional.conv2d(
                x, w, None, case.stride, case.padding, 1, case.groups
            ),
        ),
        "input": lambda: gradient([True, False, False])[:1],
        "weight": lambda: gradient([False, True, False])[1:2],
        "pool": lambda: pooled()[:1],
        "pool + gradient": both,
    }
    function = functions[what]

    def run_many(count: int) -> None:
        with torch.no_grad():
            for _ in range(count):
                function()

    return run_many, lambda: [y.numpy() for y in function()]
