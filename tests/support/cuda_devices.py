"""A device for tests: host memory, kernels in the emulator, products by NumPy."""

import numpy as np
from cuda_emulator import Pointer, launch

BASE = 1 << 40  # of the first allocation; addresses are no host addresses
POISON = 0xFF  # NaN, -1


class EmulatedDevice:
    """Runs what the CUDA target launches, each kernel in another order of threads."""

    name = "emulator"
    stream_number = None
    conditionals = True
    block = 64
    most_blocks = 2

    def __init__(self, seed=0):
        self.memory = {}
        self.next = BASE
        self.recorded = None
        self.rng = np.random.default_rng(seed)
        self.launched = 0

    def allocate(self, size):
        assert self.recorded is None, "allocation inside of a capture"
        address = self.next
        self.memory[address] = np.full(size, POISON, np.uint8)
        self.next += -(-size // 4096) * 4096 + 4096
        return address

    def free(self, address):
        del self.memory[address]

    def bytes(self, address):
        """The bytes from an address to the end of its allocation."""
        base = max(b for b in self.memory if b <= address)
        assert address <= base + len(self.memory[base]), "not in an allocation"
        return self.memory[base][address - base :]

    def write(self, address, array):
        data = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
        self.bytes(address)[: len(data)] = data

    def read(self, address, array):
        assert self.recorded is None, "a copy to the host inside of a capture"
        view = array.reshape(-1).view(np.uint8)
        view[...] = self.bytes(address)[: len(view)]

    def copy(self, target, source, size):
        def work():
            self.bytes(target)[:size] = self.bytes(source)[:size].copy()

        self._do(work)

    def fill(self, address, byte, size):
        def work():
            self.bytes(address)[:size] = byte

        self._do(work)

    def load(self, source):
        return source

    def launch(self, kernel, grid, block, arguments):
        given = [
            self.argument(kind, argument)
            for kind, argument in zip(kernel.kinds, arguments, strict=True)
        ]

        def work():
            self.launched += 1
            seed = int(self.rng.integers(1 << 30))
            text, functions = kernel.canonical, kernel.functions
            launch(text, grid, block, given, seed, functions)

        self._do(work)

    def argument(self, kind, argument):
        if kind == "status":
            return self.bytes(argument)[:64].view(np.int64)
        if not kind.startswith("*"):
            return np.dtype(kind).type(argument)
        dtype = np.dtype(kind[1:])
        memory = self.bytes(argument)
        return Pointer(
            memory[: len(memory) // dtype.itemsize * dtype.itemsize].view(dtype)
        )

    def multiply(self, product, a, b, c):
        def matrix(address, rows, columns, ld, step):
            flat = self.bytes(address)
            flat = flat[: len(flat) // product.dtype.itemsize * product.dtype.itemsize]
            size = product.dtype.itemsize
            return np.lib.stride_tricks.as_strided(
                flat.view(product.dtype), (product.batch, rows, columns),
                (step * size, ld * size, size),
            )  # fmt: skip

        def work():
            (ta, tb), (m, n, k) = product.transposed, (product.m, product.n, product.k)
            left, right, out = product.ld
            one, two, three = product.batch_strides
            x = matrix(a, *((k, m) if ta else (m, k)), left, one)
            y = matrix(b, *((n, k) if tb else (k, n)), right, two)
            x, y = (x.swapaxes(1, 2) if ta else x), (y.swapaxes(1, 2) if tb else y)
            result = matrix(c, m, n, out, three)
            if product.dtype.itemsize == 2:
                x, y = x.astype("float32"), y.astype("float32")
            old = product.beta * result if product.beta else 0
            result[...] = (product.alpha * (x @ y) + old).astype(product.dtype)

        self._do(work)

    def begin_capture(self):
        assert self.recorded is None
        self.recorded = []

    def end_capture(self):
        graph, self.recorded = self.recorded, None
        return graph

    @property
    def recording(self):
        return self.recorded is not None

    def condition(self):
        return [None]

    def set_condition(self, condition, flag):
        def work():
            condition[0] = int(self.bytes(flag)[:8].view(np.int64)[0])

        assert self.recording
        self._do(work)

    def conditional(self, condition, loop, body):
        outside, self.recorded = self.recorded, []
        body()
        inside, self.recorded = self.recorded, outside

        def work():
            while condition[0]:
                self.replay(inside)
                if not loop:
                    return

        self._do(work)

    def replay(self, graph):
        for work in graph:
            work()

    def wait_for(self, stream):
        raise AssertionError("there are no other streams")

    def synchronise(self):
        assert self.recorded is None, "waiting inside of a capture"

    def _do(self, work):
        if self.recorded is None:
            work()
        else:
            self.recorded.append(work)
