"""The arrows between the packages, as import-linter checks them."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_contracts_are_kept():
    pytest.importorskip("importlinter")
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = subprocess.run(
        [sys.executable, "-c", code, "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


LATER = ("tqdm", "graphviz", "opt_einsum", "staticgrad.train.cuda_loop")
HEAVY = ("scipy_openblas32", "matplotlib", "cuda", "torch", "jax", "numba.cuda")


def test_what_few_programs_need_is_not_imported():
    """Nor while a graph is compiled, run and trained on the cpu."""
    code = (
        "import sys, numpy as np, staticgrad as sg\n"
        "x = sg.input('x', ('n',))\n"
        "w = sg.parameter(1.0)\n"
        "trainer = sg.Trainer(sg.mean((w * x) ** 2), optimizer=sg.optim.SGD(0.1))\n"
        "trainer.fit({'x': np.ones(4)}, epochs=1, progress=False)\n"
        "print(*sys.modules, sep='\\n')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    loaded = done.stdout.split()
    ours = [name for name in loaded if name.startswith("staticgrad.compiler.")]
    assert [name for name in ours if "cuda" in name] == []
    assert [name for name in (*LATER, *HEAVY) if name in loaded] == []
