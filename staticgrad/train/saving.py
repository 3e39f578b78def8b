"""Arrays and facts in one safetensors file, replaced atomically.

The facts are JSON under one key of the file's metadata. A reader sees the old file or
the new one, never a part: the bytes go to a temporary file in the same folder, which
then takes the place of the old one. Format: https://github.com/huggingface/safetensors
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_bytes

from staticgrad.errors import GraphError
from staticgrad.ir.source import at, here

KEY = "staticgrad"

Arrays = Mapping[str, npt.NDArray[Any]]


def write(path: str | os.PathLike[str], arrays: Arrays, facts: Any) -> None:
    """Write `arrays` and `facts` (what JSON can hold) to `path`."""
    plain = {name: np.array(array, order="C") for name, array in arrays.items()}
    replace(Path(path), to_bytes(plain, {KEY: json.dumps(facts)}))


def read(path: str | os.PathLike[str]) -> tuple[dict[str, npt.NDArray[Any]], Any]:
    """Return (arrays, facts) that `write` wrote; GraphError for other files."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"load requires a file, got none at {path}")
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            names = file.keys()
            arrays = {name: file.get_tensor(name) for name in names}
    except SafetensorError as error:
        raise GraphError(
            f"load requires a safetensors file, got {path} ({error}); "
            f"save it again with trainer.save{at(here())}"
        ) from error
    if KEY not in metadata:
        raise GraphError(
            f"load requires a file that trainer.save wrote, got {path}; for other "
            "files read them with safetensors and assign to parameter.value"
            f"{at(here())}"
        )
    return arrays, json.loads(metadata[KEY])


def replace(path: Path, content: bytes) -> None:
    """Replace the file at `path` by `content` atomically."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"save requires a folder, got none at {path.parent}")
    if path.is_dir():
        raise IsADirectoryError(f"save requires a file, got the folder {path}")
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
