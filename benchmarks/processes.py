"""Workers seen from the process that compares them."""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks import machine
from benchmarks.engines import ENGINES

ROOT = Path(__file__).resolve().parent.parent


EXCEPTION = re.compile(r"[\w.]*(Error|Exception|Interrupt|Bug|Unsupported)\b")


class WorkerError(RuntimeError):
    """A worker ended before it answered."""


class Process:
    """A module that answers lines with lines of JSON, in a process of its own."""

    def __init__(
        self,
        name: str,
        words: Sequence[str],
        environment: Mapping[str, str],
        root: Path = ROOT,
    ) -> None:
        self.name = name
        self._folder = tempfile.TemporaryDirectory()
        self._errors = (Path(self._folder.name) / "errors").open("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-m", *words],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
            text=True, cwd=root, env=environment,
        )  # fmt: skip

    def ask(self, line: str) -> dict:
        """Send a line and return the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self.read()

    def read(self) -> dict:
        """Its next line of JSON; WorkerError if it has ended without one."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                return dict(json.loads(line))
        self._errors.seek(0)
        text = reason(self._errors.read())
        self.close()
        raise WorkerError(f"{self.name}: {text}")

    def close(self) -> None:
        """End the process."""
        self._process.communicate()
        self._errors.close()
        self._folder.cleanup()


class Worker(Process):
    """One engine with one workload."""

    def __init__(
        self, workload: str, engine: str, threads: int, scale: float, root: Path = ROOT
    ) -> None:
        self.rounds: list[dict] = []
        self._kept = tempfile.TemporaryDirectory()
        self._result = Path(self._kept.name) / "result.npz"
        words = (
            "benchmarks.worker", workload, ENGINES[engine],
            "--threads", str(threads), "--scale", str(scale),
            "--result", str(self._result),
        )  # fmt: skip
        cache = str(Path(self._kept.name) / "kernels")
        environment = machine.environment(threads, STATICGRAD_CACHE_DIR=cache)
        super().__init__(engine, words, environment, root)
        self.first_call = float(self.read()["first_call"])

    def result(self) -> list[np.ndarray]:
        """Return the results of the checked steps."""
        with np.load(self._result) as arrays:
            return list(arrays.values())

    def measure(self, seconds: float) -> None:
        """One more round."""
        self.rounds.append(self.ask(str(seconds)))

    def best(self, what: str) -> float | None:
        """The least over all rounds."""
        found = [r[what] for r in self.rounds if r[what] is not None]
        return min(found, default=None)

    def close(self) -> None:
        """End the process and forget its results."""
        super().close()
        self._kept.cleanup()


def reason(errors: str) -> str:
    """The last line that names an exception, or else the last line."""
    lines = [line for line in errors.splitlines() if line.strip()] or ["it ended"]
    named = [line for line in lines if EXCEPTION.match(line)]
    return (named or lines)[-1]
