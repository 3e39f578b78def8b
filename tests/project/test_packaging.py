"""Installed package: the list of packages, the import name, a light import."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def configuration():
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def python(code, folder, **environment):
    """Run `code` in `folder` with the checkout importable; returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_list_of_packages_is_the_folders_on_disk():
    listed = configuration()["tool"]["setuptools"]["packages"]
    found = set()
    for file in ROOT.glob("staticgrad/**/__init__.py"):
        found.add(".".join(file.parent.relative_to(ROOT).parts))
    for file in ROOT.glob("compiler/**/__init__.py"):
        found.add(".".join(("staticgrad", *file.parent.relative_to(ROOT).parts)))
    assert sorted(listed) == sorted(found)


def test_every_folder_with_code_is_a_package():
    for top in ("staticgrad", "compiler"):
        for file in (ROOT / top).rglob("*.py"):
            assert (file.parent / "__init__.py").exists(), file


def test_link_to_the_compiler_is_relative():
    link = ROOT / "staticgrad" / "compiler"
    assert link.is_symlink()
    assert Path(os.readlink(link)) == Path("..", "compiler")


def test_import_beside_a_foreign_compiler_module(tmp_path):
    (tmp_path / "compiler.py").write_text("raise RuntimeError('foreign')")
    code = (
        "import staticgrad, staticgrad.compiler.kernel_ir.plan as p; print(p.__name__)"
    )
    assert python(code, tmp_path) == "staticgrad.compiler.kernel_ir.plan"


def test_compiler_refuses_another_name():
    code = "try: import compiler\nexcept ImportError as e: print(e)"
    assert "imported as staticgrad.compiler" in python(code, ROOT)


@pytest.mark.parametrize(
    "module", ["numba.cuda.cudadrv", "matplotlib", "sklearn", "torch"]
)
def test_import_is_light(module, tmp_path):
    code = f"import sys, staticgrad; print({module!r} in sys.modules)"
    assert python(code, tmp_path) == "False"


def test_import_starts_no_thread(tmp_path):
    code = (
        "import os, threading, numpy, numba\n"
        "def count():\n"
        "    tasks = '/proc/self/task'\n"
        "    native = len(os.listdir(tasks)) if os.path.isdir(tasks) else 0\n"
        "    return threading.active_count(), native\n"
        "before = count()\n"
        "import staticgrad\n"
        "print(before == count())"
    )
    assert python(code, tmp_path) == "True"


def test_versions_agree(tmp_path):
    code = "import staticgrad; print(staticgrad.__version__)"
    assert python(code, tmp_path) == configuration()["project"]["version"]


def test_python_m_staticgrad(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "staticgrad"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    for word in ("staticgrad", "numba", "processor", "threads", "cache"):
        assert word in done.stdout
