"""A few kernels agree with the official model: Numba's CUDA simulator."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUPPORT = ROOT / "tests" / "support"


def test_kernels_without_shuffles_run_in_numbas_simulator():
    path = os.pathsep.join([str(ROOT), str(SUPPORT)])
    surroundings = os.environ | {"NUMBA_ENABLE_CUDASIM": "1", "PYTHONPATH": path}
    command = [sys.executable, str(SUPPORT / "cuda_simulated.py")]
    out = subprocess.run(command, capture_output=True, text=True, env=surroundings)
    wanted = ["elementwise", "column", "gather", "scan", "integers"]
    assert out.stdout.split() == wanted, out.stderr[-2000:]
