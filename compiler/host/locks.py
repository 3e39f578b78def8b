"""Locks that are released in forked children.

A thread that holds a lock while another one forks is not in the child, so nobody would
ever release it there. What the lock protects is as it was at that moment: a plan that
was not stored yet is made anew, and a step of the lost thread is half done.
"""

from __future__ import annotations

import os
import threading
from weakref import WeakSet

_made: WeakSet[threading.Lock] = WeakSet()


def fork_safe_lock() -> threading.Lock:
    """Return a lock that is open in a forked child, whoever held it in the parent."""
    lock = threading.Lock()
    _made.add(lock)
    return lock


def _renew() -> None:
    for lock in list(_made):
        # CPython's own way of doing it, in threading and logging.
        lock._at_fork_reinit()  # type: ignore[attr-defined]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
