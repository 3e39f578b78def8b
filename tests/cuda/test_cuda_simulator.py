"""A few kernels agree with the official model: Numba's CUDA simulator."""

import os
import subprocess
import sys

HERE = os.path.dirname(__file__)


def test_kernels_without_shuffles_run_in_numbas_simulator():
    path = os.pathsep.join([os.path.dirname(HERE), HERE])
    surroundings = os.environ | {"NUMBA_ENABLE_CUDASIM": "1", "PYTHONPATH": path}
    command = [sys.executable, os.path.join(HERE, "cuda_simulated.py")]
    out = subprocess.run(command, capture_output=True, text=True, env=surroundings)
    wanted = ["elementwise", "column", "gather", "scan", "integers"]
    assert out.stdout.split() == wanted, out.stderr[-2000:]
