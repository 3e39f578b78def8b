"""``python -m benchmarks gemm``: our tiles against OpenBLAS, GF/s on one thread.

OpenBLAS is timed twice: once in the fixed parts in which graphs run it, once whole. The
three alternate in short bursts, and each keeps its best. The rule in
compiler/gemm/choose_product.py comes from this table.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from numba import njit

from benchmarks import machine
from benchmarks.tables import table
from staticgrad.compiler.codegen.llvm.pointers import call_kernel
from staticgrad.compiler.gemm import blas, tile_driver
from staticgrad.compiler.kernel_ir.kernels import GemmKernel, Operand

# kind, m, n, k, batch: the products of training steps, then vectors, then growing ones
SHAPES = (
    ("NN", 16, 16, 4, 1), ("NN", 32, 64, 64, 1), ("NT", 32, 64, 64, 1),
    ("TN", 64, 64, 32, 1), ("NN", 64, 256, 784, 1), ("NT", 64, 784, 256, 1),
    ("TN", 784, 256, 64, 1), ("NN", 64, 10, 256, 1), ("NT", 64, 256, 10, 1),
    ("TN", 256, 10, 64, 1), ("NN", 37, 51, 29, 1), ("NN", 64, 64, 16, 32),
    ("NT", 64, 64, 16, 32), ("NN", 64, 16, 64, 32), ("TN", 64, 16, 64, 32),
    ("NN", 512, 64, 256, 1), ("TN", 256, 64, 512, 1), ("NT", 8, 256, 784, 1),
    ("NN", 1600, 256, 64, 1), ("TN", 256, 64, 1600, 1), ("TN", 1024, 64, 2000, 1),
    ("NN", 1000, 1, 20, 1), ("TN", 20, 1, 1000, 1), ("NN", 1, 256, 784, 1),
    ("NT", 1, 256, 784, 1), ("NN", 1024, 1, 1024, 1), ("TN", 1024, 1, 1024, 1),
    ("NN", 1, 1024, 1024, 1), ("NN", 1, 3000, 3000, 1), ("NT", 1, 3000, 3000, 1),
    ("NN", 2, 3000, 3000, 1), ("NN", 4, 3000, 3000, 1), ("NN", 8, 3000, 3000, 1),
    ("NN", 256, 2, 256, 1), ("NT", 256, 4, 256, 1), ("TN", 256, 2, 256, 1),
    ("NN", 1024, 4, 1024, 1), ("TN", 1024, 4, 1024, 1), ("NN", 2, 256, 256, 1),
    ("NN", 256, 256, 1, 1),
    ("NN", 256, 256, 256, 1), ("NT", 256, 256, 256, 1), ("TN", 256, 256, 256, 1),
    ("NN", 512, 512, 512, 1), ("NT", 512, 512, 512, 1), ("TN", 512, 512, 512, 1),
    ("NN", 1024, 1024, 1024, 1), ("NT", 1024, 1024, 1024, 1),
    ("TN", 1024, 1024, 1024, 1),
)  # fmt: skip
BURST_SECONDS = 4e-4


@njit(nogil=True)
def _repeat(function, operands, table, items, context, times):
    for _ in range(times):
        call_kernel(function, operands, table, 0, items, context)


def _kernel(kind: str, m: int, n: int, k: int, batch: int, dtype: str) -> GemmKernel:
    left, right = kind[0] == "T", kind[1] == "T"
    modes = ("read", "read", "write")
    operands = [Operand(i, mode, np.dtype(dtype)) for i, mode in enumerate(modes)]
    return GemmKernel(
        "matmul", tuple(operands), m, n, k, (left, right),
        (m if left else k, k if right else n, n), (0, 0, 0), batch,
        (m * k, k * n, m * n), 1.0, 1.0 if left else 0.0, (),
    )  # fmt: skip


class Case:
    """One product, computed in three ways on the same memory."""

    def __init__(self, shape: tuple[str, int, int, int, int], dtype: str) -> None:
        kind, m, n, k, batch = shape
        kernel = _kernel(kind, m, n, k, batch, dtype)
        self.flops = 2 * m * n * k * batch
        whole = blas.described(blas.shape_of(kernel, {}))
        blas.cut(whole, (m, n), 1 << 62)
        ours = tile_driver.described(blas.shape_of(kernel, {}))
        self.ways = (
            (blas.kernel_address(), whole),
            (blas.kernel_address(), blas.described(blas.shape_of(kernel, {}))),
            (int(tile_driver.addresses(ours[None])[0]), ours),
        )
        draw = np.random.default_rng(0).standard_normal
        sizes = (m * k, k * n, m * n)
        self.arrays = [(draw(batch * size) * 1e-3).astype(dtype) for size in sizes]
        self.operands = np.array([a.ctypes.data for a in self.arrays], np.int64)
        self.scratch = np.zeros(tile_driver.PANEL_BYTES + 64, np.uint8)
        start = self.scratch.ctypes.data
        self.context = np.array([0, start + -start % 64], np.int64)

    def run(self, way: int, times: int) -> None:
        """Compute the product so many times in one of the ways."""
        function, words = self.ways[way]
        _repeat(
            function, self.operands.ctypes.data, words.ctypes.data, words[blas.ITEMS],
            self.context.ctypes.data, times,
        )  # fmt: skip

    def seconds(self, way: int, times: int) -> float:
        """Seconds per product."""
        start = time.perf_counter()
        self.run(way, times)
        return (time.perf_counter() - start) / times

    def best(self, seconds: float) -> list[float]:
        """Of each way the best burst, in seconds per product."""
        ways = range(len(self.ways))
        end = time.perf_counter() + seconds
        times = []
        for way in ways:
            self.seconds(way, 1)
            times.append(max(1, int(BURST_SECONDS / self.seconds(way, 3))))
        best = [float("inf")] * len(ways)
        while True:
            for way in ways:
                best[way] = min(best[way], self.seconds(way, times[way]))
            if time.perf_counter() > end:
                return best


def measure(dtype: str, seconds: float) -> dict[str, list[float]]:
    """GF/s of OpenBLAS whole, in parts, and of ours, per product."""
    found = {}
    for shape in SHAPES:
        kind, m, n, k, batch = shape
        case = Case(shape, dtype)
        title = f"{kind} {m}x{n}x{k}" + (f", {batch} times" if batch > 1 else "")
        found[title] = [case.flops / best / 1e9 for best in case.best(seconds)]
    return found


def main(options: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Measure and print, both dtypes, on one core."""
    machine.pin(1)
    found = {}
    for dtype in ("float32", "float64"):
        found[dtype] = measure(dtype, options.seconds)
        rows = [
            (
                title,
                *(f"{rate:.1f}" for rate in rates),
                f"{rates[2] / max(rates[:2]):.2f}",
            )
            for title, rates in found[dtype].items()
        ]
        print(f"\nproducts, {dtype}, GF/s on one thread")
        print(table(("product", "OpenBLAS", "in parts", "ours", "ours / best"), rows))
    return found
