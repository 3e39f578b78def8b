"""The arrows between the packages, as import-linter checks them."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import staticgrad as sg

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


NOT_AT_IMPORT = (
    "numba", "llvmlite", "safetensors", "wasmtime", "graphviz", "tqdm", "opt_einsum",
    "staticgrad.compiler", "staticgrad.control", "staticgrad.custom", "staticgrad.nn",
    "staticgrad.optim", "staticgrad.pictures", "staticgrad.train",
)  # fmt: skip
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


def test_importing_and_building_needs_no_compiler():
    code = (
        "import sys, staticgrad as sg\n"
        "x = sg.input('x', ('n', 3))\n"
        "y = sg.sum(sg.tanh(x) @ sg.ones((3, 2)))\n"
        "print(*sys.modules, sep='\\n')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    loaded = done.stdout.split()
    assert [name for name in NOT_AT_IMPORT if name in loaded] == []


def lazy_names():
    """Public names that are imported when asked for, with what type checkers read."""
    tree = ast.parse((ROOT / "staticgrad" / "__init__.py").read_text("utf-8"))
    (block,) = [
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    return {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_what_type_checkers_read_is_what_is_imported():
    assert lazy_names() == sg._MODULE_OF


@pytest.mark.parametrize("name", sorted(sg._MODULE_OF))
def test_a_lazy_name_is_there_at_once(name):
    code = (
        f"import staticgrad as sg; print(sg.{name} is sg.{name}, {name!r} in dir(sg))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["True", "True"]
