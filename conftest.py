"""Settings for all tests and doctests."""

import os
from pathlib import Path

import pytest

# Compiled kernels are kept beside pytest's own cache, not in the user's.
os.environ.setdefault(
    "STATICGRAD_CACHE_DIR", str(Path(__file__).parent / ".pytest_cache" / "kernels")
)


@pytest.fixture(autouse=True)
def _work_in_temporary_folder_for_doctests(request, tmp_path_factory, monkeypatch):
    """Doctests may write files; they go where nobody minds."""
    if isinstance(request.node, pytest.DoctestItem):
        monkeypatch.chdir(tmp_path_factory.mktemp("doctest"))
