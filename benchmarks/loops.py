"""The scan table: loops and their gradients against JAX and PyTorch, on one thread."""

from argparse import Namespace

from benchmarks import steps

NAMES = ("carries", "logistic_map", "lstm")


def main(options: Namespace) -> list[dict]:
    """The steps table, of the workloads that are loops."""
    options.names = options.names or list(NAMES)
    options.threads = [1]
    return steps.main(options)
