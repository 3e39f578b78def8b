"""Results as JSON, one file per commit, and the comparison of two commits."""

import json
import subprocess
from pathlib import Path

from benchmarks import machine
from benchmarks.tables import duration, ratio, table

FOLDER = Path(__file__).resolve().parent / "results"
DIGITS = 12


def commit_of(revision: str) -> str:
    """The commit that git calls `revision`."""
    done = _git("rev-parse", f"--short={DIGITS}", f"{revision}^{{commit}}")
    return done.stdout.strip()


def is_changed() -> bool:
    """Whether a file that git knows differs from the commit."""
    return bool(_git("status", "--porcelain", "--untracked-files=no").stdout.strip())


def path_of(commit: str, folder: Path = FOLDER) -> Path:
    """Return the path of a commit's results."""
    return folder / f"{commit}.json"


def write(command: str, found: object, folder: Path = FOLDER) -> Path:
    """Put what a command found beside what others found at this commit."""
    commit = commit_of("HEAD")
    path = path_of(commit, folder)
    known = json.loads(path.read_text()) if path.exists() else {}
    known |= {"commit": commit, "machine": machine.description()}
    known["changed"] = is_changed()
    known[command] = found
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(known, indent=1) + "\n")
    return path


def read(revision: str, folder: Path = FOLDER) -> dict:
    """The results of a commit; SystemExit if there are none."""
    path = path_of(commit_of(revision), folder)
    if not path.exists():
        raise SystemExit(
            f"--against requires results of {revision}, got none at {path}; "
            "check it out and run python -m benchmarks --json"
        )
    return dict(json.loads(path.read_text()))


def compare_steps(now: list[dict], then: list[dict]) -> str:
    """Return the speedup of each workload."""
    before = {(row["workload"], row["threads"]): row for row in then}
    lines = []
    for row in now:
        old = before.get((row["workload"], row["threads"]))
        if old is None:
            continue
        for what in ("loop", "call"):
            a, b = (r[what].get("staticgrad") for r in (old, row))
            if a and b:
                cells = (str(row["threads"]), what, duration(a), duration(b))
                lines.append((row["workload"], *cells, ratio(a / b)))
    return table(("workload", "threads", "what", "then", "now", "faster x"), lines)


def _git(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["git", *words], capture_output=True, text=True, check=True, cwd=FOLDER.parent
    )
