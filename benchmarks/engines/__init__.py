"""Engines: libraries that run workloads. A peer is imported in its own module only."""

from collections.abc import Iterable
from importlib.util import find_spec

ENGINES = {
    "staticgrad": "benchmarks.engines.ours",
    "torch eager": "benchmarks.engines.torch_eager",
    "torch compiled": "benchmarks.engines.torch_compiled",
    "jax": "benchmarks.engines.jax_jit",
    "pytensor c": "benchmarks.engines.pytensor_c",
    "pytensor numba": "benchmarks.engines.pytensor_numba",
}
PEERS = ("torch", "jax", "pytensor")


def installed(engines: Iterable[str] = ENGINES) -> list[str]:
    """The engines whose library is installed, in their order."""
    return [e for e in engines if package(e) == "staticgrad" or _found(package(e))]


def missing_peers() -> list[str]:
    """The peers that are not installed."""
    return [peer for peer in PEERS if not _found(peer)]


def package(engine: str) -> str:
    """The library that an engine needs."""
    return engine.split()[0]


def _found(name: str) -> bool:
    return find_spec(name) is not None
