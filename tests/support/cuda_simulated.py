"""Kernels in Numba's own CUDA simulator: run by test_cuda_simulator.py in a process.

The simulator is switched on by a variable that is read when Numba is imported, and has
neither shuffles nor libdevice: kernels without shuffles run, functions are the
emulator's. Prints the names of the graphs whose results are right.
"""

import warnings

import numpy as np
from cuda_devices import EmulatedDevice
from cuda_emulator import NAMES
from numba import cuda  # noqa: TID253  the simulator, in a process of its own
from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray  # noqa: TID253

import staticgrad as sg
from staticgrad.compiler.cuda.device import using


class Simulated(EmulatedDevice):
    """Runs each kernel in Numba's simulator."""

    name, block, most_blocks = "simulator", 32, 2

    def argument(self, kind, argument):
        given = super().argument(kind, argument)
        memory = getattr(given, "memory", given)
        # Host arrays would be copied, though operands are parts of one memory.
        return FakeCUDAArray(memory) if isinstance(memory, np.ndarray) else memory

    def launch(self, kernel, grid, block, arguments):
        names = dict(NAMES, cuda=cuda)
        exec(kernel.canonical, names)  # noqa: S102  our own text
        given = [
            self.argument(kind, argument)
            for kind, argument in zip(kernel.kinds, arguments, strict=True)
        ]
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            cuda.jit(names["kernel"])[grid, block](*given)
        self.launched += 1


def main():
    x, y = sg.input("x", ("n", 5)), sg.input("y", (5,))
    i = sg.input("i", ("k",), dtype="int64")
    graphs = {
        "elementwise": sg.tanh(x) * y + sg.sin(x),
        "column": sg.sum(x * y, axis=0),
        "gather": sg.take(x, i, axis=0),
        "scan": sg.cumsum(x, axis=1),
        "integers": sg.argmax(x, axis=0),
    }
    rng = np.random.default_rng(0)
    values = {
        "x": rng.normal(size=(40, 5)).astype("float32"),
        "y": rng.normal(size=5).astype("float32"),
        "i": np.array([3, 0, -1]),
    }
    for name, graph in graphs.items():
        device = Simulated()
        with using(device):
            f = sg.compile(graph, target="cuda")
        reference = sg.compile(graph, target="reference")
        given = {leaf.name: values[leaf.name] for leaf in f.inputs}
        close = np.allclose(f(**given), reference(**given), rtol=1e-5, atol=1e-6)
        if close and device.launched:
            print(name)


if __name__ == "__main__":
    main()
