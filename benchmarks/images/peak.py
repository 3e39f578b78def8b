"""Prints the float32 flops per second of NumPy's large product on one core."""

import time

import numpy as np

from benchmarks import machine
from benchmarks.clock import calls, per_run

SIZE, SECONDS = 1024, 1.0


def main() -> None:
    """Processor time, as convolutions on one thread are measured."""
    machine.pin(1)
    a, b = (np.ones((SIZE, SIZE), np.float32) for _ in range(2))
    out = np.empty_like(a)
    product = calls(lambda: np.matmul(a, b, out=out))
    print(2.0 * SIZE**3 / per_run(product, SECONDS, time.process_time))


if __name__ == "__main__":
    main()
