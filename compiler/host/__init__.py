"""The host: Numba's internals, kernel cache, locks, threads, processor."""
