"""``python -m staticgrad``: versions of packages and features of this machine.

For bug reports: versions, processor, threads, where compiled kernels are kept, and
which program lays out pictures.
"""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version

from staticgrad.compiler.host.cache import cache_folder
from staticgrad.compiler.host.numba_internals import target
from staticgrad.compiler.host.processor import has_fma, vector_bytes
from staticgrad.compiler.runtime import threads, vm
from staticgrad.pictures.layout import dot_program
from staticgrad.pictures.xml_text import byte_text

PACKAGES = ("staticgrad", "numba", "llvmlite", "numpy", "scipy-openblas32", "tbb")


def facts() -> dict[str, str]:
    """Return the facts that the command prints, by name."""
    found = {name: installed(name) for name in PACKAGES}
    found["python"] = f"{platform.python_version()} on {platform.platform()}"
    functions = "our own" if has_fma() else "libm's (no fused multiply-add)"
    found["processor"] = (
        f"{target().cpu}, {os.cpu_count()} cores, vectors of {vector_bytes()} bytes, "
        f"functions {functions}"
    )
    vm.load()
    found["threads"] = f"{threads.get_num_threads()} by {threads.layer()}"
    found["cache"] = _cache_text()
    found["layout"] = dot_program() or "embedded Graphviz"
    return found


def installed(package: str) -> str:
    """Return the version of an installed package, or the reason there is none."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "run from a checkout" if package == "staticgrad" else "not installed"


def _cache_text() -> str:
    folder = cache_folder()
    files = [path for path in folder.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    return f"{folder}, {len(files):,} files, {byte_text(size)}"


def main() -> None:
    """Print the facts."""
    for name, text in facts().items():
        print(f"{name:<17} {text}")


if __name__ == "__main__":
    main()
