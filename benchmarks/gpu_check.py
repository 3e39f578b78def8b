"""Everything about the cuda target that needs a GPU, in one command and six minutes.

``python benchmarks/gpu_check.py [--out FILE] [--budget SECONDS] [--emulate]`` runs
gpu.py in a checkout, installed or not.
"""

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    root = Path(__file__).resolve().parent.parent
    sys.path[:0] = [str(root), str(root / "tests" / "support")]
    runpy.run_module("benchmarks.gpu", run_name="__main__")
