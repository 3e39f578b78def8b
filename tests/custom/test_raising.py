"""Does what a function of the user's raises arrive from code that lies on disk?"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tests" / "support" / "raising.py"


def test_computed_arguments_arrive_from_code_of_another_process(tmp_path):
    around = os.environ | {"STATICGRAD_CACHE_DIR": str(tmp_path)}
    around["PYTHONPATH"] = str(ROOT)
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, SCRIPT], capture_output=True, text=True, env=around,
            timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "KeyError: negative, -2.0 (rooted, raising.py:12)" in done.stdout
