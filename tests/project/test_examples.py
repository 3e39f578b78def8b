"""Every example runs in its short form, and its own checks hold."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = (
    "control_flow", "derivatives", "digits_attention", "digits_explained",
    "hooks_and_functions", "maml", "memory", "missing_gradient", "sampling", "sinc",
    "swell", "teaching", "vanishing", "wgan_gp",
)  # fmt: skip
ON_DIGITS = ("digits_attention", "digits_explained", "teaching")


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_holds_what_it_checks(name: str, tmp_path: Path) -> None:
    if name in ON_DIGITS:
        pytest.importorskip("sklearn")
    if name == "digits_explained":
        pytest.importorskip("matplotlib")
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / f"{name}.py"), "--short"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "HOME": str(Path.home()), "PATH": ""},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_what_the_readme_points_to_exists() -> None:
    text = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    text = text.partition("## From a define-by-run engine")[2]
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line[:1] == "|"]
    rows = rows[2:]
    assert len(rows) > 30
    for *_, examples, tests in rows:
        for folder, cell in (("examples", examples), ("tests", tests)):
            names = re.findall(r"`(\w+\*?)`", cell)
            assert names
            for name in names:
                assert list((ROOT / folder).rglob(f"{name}.py")), name
