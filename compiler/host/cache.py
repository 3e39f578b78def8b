"""The kernel cache: machine code in memory and on disk.

A key is the SHA-256 of everything that the code depends on: the canonical source, the
calling convention, staticgrad's own code generator, the processor, versions and
settings. An entry is one file: a magic line, the SHA-256 of the rest, a JSON header and
the object code. Nothing of a file is used before its sum is
verified, and nothing is unpickled.

Files are written beside their place and renamed, so readers and concurrent writers see
whole entries only. Whatever goes wrong with the disk (read-only, full, corrupt) costs a
compilation and never an error. The least recently used entries go when the folder
passes its bound. Forks wait until no thread compiles.

STATICGRAD_CACHE_DIR moves the folder, which belongs to the user alone: what is in it is
run as code.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import llvmlite
import numba

from staticgrad.compiler.host import numba_internals as internals
from staticgrad.compiler.host.disk import stamp_of
from staticgrad.compiler.host.numba_internals import ObjectCode

LIMIT_BYTES = 512 << 20
"""The folder's default bound; about 25,000 kernels."""

_MAGIC = b"staticgrad kernel 2\n"
_SUFFIX = ".kernel"
_TEMPORARY = ".part"
_WRITES_PER_SCAN = 64  # on average: most processes write less and would scan each
_STALE_SECONDS = 3600.0
_CHANGED = (AttributeError, KeyError, RuntimeError, TypeError, ValueError)
"""Errors of untested Numba versions where private parts are used."""
_LOST = "and cannot be kept on disk"
_LIBRARIES = (numba, llvmlite)
_GENERATORS = ("codegen", "gemm", "cuda/source")


@dataclass(frozen=True, slots=True)
class CachedKernel:
    """Kernel in this process: its address, whether it was cached, and why not."""

    address: int
    hit: bool
    reason: str


class Cache:
    """Kernels by key: a table of this process above a folder of files."""

    def __init__(self, folder: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        self._loaded: dict[str, Any] = {}
        self._lock = threading.RLock()

    def get(self, key: str, compile_it: Callable[[], Any]) -> CachedKernel:
        """Return the kernel of `key`, from memory, disk or else `compile_it`.

        It returns something with an address that has object code. One thread at a time
        compiles; a kernel that is in memory is returned at once.
        """
        known = self._loaded.get(key)
        if known is not None:
            return CachedKernel(known.address, True, "in memory")
        with self._lock:
            known = self._loaded.get(key)
            if known is not None:
                return CachedKernel(known.address, True, "in memory")
            return self._from_disk_or(key, compile_it)

    def _from_disk_or(self, key: str, compile_it: Callable[[], Any]) -> CachedKernel:
        stored, reason = read_entry(self.path(key), key)
        loaded = None if stored is None else _linked(stored)
        if loaded is not None:
            self._loaded[key] = loaded
            return CachedKernel(loaded.address, True, reason)
        callback = compile_it()
        self._loaded[key] = callback
        written = self.write(key, _object_code(callback))
        if stored is not None:
            reason = "cannot be linked"
        return CachedKernel(
            callback.address, False, reason if written else f"{reason}, {_LOST}"
        )

    def text(self, name: str, make: Callable[[], str]) -> str:
        """Return the cached text of `name`; if there is none, make and store it."""
        key = kernel_key(name)
        stored, _ = read_entry(self.path(key), key)
        if stored is not None:
            return stored.code.decode()
        made = make()
        self.write(key, ObjectCode(name, made.encode()))
        return made

    def path(self, key: str) -> Path:
        """Return the file of an entry."""
        return self.folder / f"{key}{_SUFFIX}"

    def write(self, key: str, stored: ObjectCode | None) -> bool:
        """Store an entry; False if there is none or the disk refuses."""
        if stored is None:
            return False
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(self.path(key), entry_bytes(key, stored))
        except OSError:
            return False
        if os.urandom(1)[0] % _WRITES_PER_SCAN == 0:
            trim(self.folder, self.limit_bytes)
        return True

    def renew_lock(self) -> None:
        """Replace the lock in a forked child: its holder may not exist there."""
        self._lock = threading.RLock()


def _linked(stored: ObjectCode) -> internals.Linked | None:
    """Link the code into this process; None where this Numba cannot."""
    try:
        return internals.load_object_code(stored)
    except _CHANGED:
        return None


def _object_code(callback: Any) -> ObjectCode | None:
    """Return the code to store; None where this Numba does not give it."""
    try:
        return internals.object_code(callback)
    except _CHANGED:
        return None


def entry_bytes(key: str, stored: ObjectCode) -> bytes:
    """Return an entry as it lies on disk."""
    header = {"key": key, "symbol": stored.symbol}
    rest = json.dumps(header).encode() + b"\n" + stored.code
    return _MAGIC + hashlib.sha256(rest).hexdigest().encode() + b"\n" + rest


def read_entry(path: Path, key: str) -> tuple[ObjectCode | None, str]:
    """Return the entry at `path`, or None, and the state of the file."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None, "not on disk"
    except OSError as error:
        return None, f"unreadable ({error.strerror})"
    stored = _verified(data, key)
    if stored is None:
        return None, "corrupt on disk"
    with contextlib.suppress(OSError):
        os.utime(path)  # recently used
    return stored, "on disk"


def _verified(data: bytes, key: str) -> ObjectCode | None:
    """Return the object code in `data`, if its checksum is right."""
    start = len(_MAGIC) + 65
    rest = data[start:]
    total = hashlib.sha256(rest).hexdigest().encode()
    if data[:start] != _MAGIC + total + b"\n":
        return None
    line, _, body = rest.partition(b"\n")
    header = json.loads(line)
    if header["key"] != key:
        return None
    return ObjectCode(header["symbol"], body)


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file atomically."""
    number, name = tempfile.mkstemp(suffix=_TEMPORARY, dir=path.parent)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def trim(folder: Path, limit_bytes: int) -> None:
    """Delete the least recently used entries until the folder is within its bound.

    What writers that died have left behind goes too. Files that another process deletes
    at the same time are no error.
    """
    kept: list[tuple[float, int, Path]] = []
    now = time.time()
    for path in _files(folder):
        with contextlib.suppress(OSError):
            status = path.stat()
            if path.suffix == _SUFFIX:
                kept.append((status.st_mtime, status.st_size, path))
            elif now - status.st_mtime > _STALE_SECONDS:
                path.unlink()
    total = sum(size for _, size, _ in kept)
    for _, size, path in sorted(kept):
        if total <= limit_bytes:
            return
        with contextlib.suppress(OSError):
            path.unlink()
        total -= size


def _files(folder: Path) -> list[Path]:
    try:
        return [p for p in folder.iterdir() if p.suffix in (_SUFFIX, _TEMPORARY)]
    except OSError:
        return []


def kernel_key(text: str) -> str:
    """Return the key of canonical kernel source."""
    parts = (text, *environment())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@cache
def environment() -> tuple[str, ...]:
    """Return the versions and options that machine code depends on."""
    processor = asdict(internals.target()).values()
    versions = (f"{library.__name__}={library.__version__}" for library in _LIBRARIES)
    own = f"staticgrad={_version()}"
    return (*processor, *internals.options(), own, *versions, generator_hash())


@cache
def generator_hash() -> str:
    """The SHA-256 of the code generators and of numba_internals."""
    compiler = Path(__file__).parents[1]
    folders = (compiler / name for name in _GENERATORS)
    files = sorted(file for folder in folders for file in folder.rglob("*.py"))
    return stamp_of(internals.__file__, *map(str, files))


def _version() -> str:
    try:
        return version("staticgrad")
    except PackageNotFoundError:
        return "checkout"


def cache_folder() -> Path:
    """Return STATICGRAD_CACHE_DIR, or `staticgrad` in the user's cache folder."""
    named = os.environ.get("STATICGRAD_CACHE_DIR")
    if named:
        return Path(named).expanduser()
    home = Path(os.path.expanduser("~"))
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "staticgrad"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", home)) / "staticgrad" / "cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "staticgrad"


@cache
def default_cache() -> Cache:
    """Return the cache of this process."""
    found = Cache(cache_folder())
    internals.hold_compiler_over_fork()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=found.renew_lock)
    return found
