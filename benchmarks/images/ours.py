"""staticgrad: one bound executable a way, run n times in one native call.

Kernels are (filters, channels, height, width) in both layouts, as parameters are kept:
packing them, and bringing their gradient into that order, is part of the time.
"""

import numpy as np

import staticgrad as sg
from benchmarks.images.cases import Case

TO_LAST, TO_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


def ways(case: Case, what: str, threads: int) -> dict:
    """Both layouts."""
    sg.set_num_threads(threads)
    return {layout: _way(case, what, layout) for layout in ("first", "last")}


def _way(case: Case, what: str, layout: str) -> tuple:
    last = layout == "last"
    arrays = case.arrays()
    given, images = {}, {}
    for name in "xg":
        array = arrays[name].transpose(TO_LAST) if last else arrays[name]
        given[name] = np.ascontiguousarray(array)
        leaf = sg.input(name, given[name].shape)
        images[name] = (leaf, sg.transpose(leaf, TO_FIRST) if last else leaf)
    w = sg.input("w", arrays["w"].shape)
    leaves = {"x": images["x"][0], "g": images["g"][0], "w": w}
    given["w"] = arrays["w"]
    outputs = _outputs(case, what, images["x"][1], w, images["g"][1])
    moved = [
        sg.transpose(y, TO_LAST) if last and y.shape != w.shape else y for y in outputs
    ]
    used = NEEDS[what]
    f = sg.compile(moved, inputs=[leaves[name] for name in used])
    bound = f.bind(*(given[name] for name in used))

    def result() -> list[np.ndarray]:
        return [
            y.transpose(TO_FIRST) if last and y.shape != w.shape else y
            for y in map(np.array, bound())
        ]

    return bound.repeat, result


NEEDS = {
    "forward": "xw",
    "input": "gw",
    "weight": "xg",
    "pool": "x",
    "pool + gradient": "xg",
}


def _outputs(case: Case, what: str, x, w, g) -> list:
    if what.startswith("pool"):
        y = sg.nn.max_pool2d(x, 2)
        return [y] if what == "pool" else [y, sg.grad(y, x, g)]
    y = sg.nn.conv2d(x, w, None, case.stride, case.padding, 1, case.groups)
    if what == "forward":
        return [y]
    return [sg.grad(y, x if what == "input" else w, g)]
