"""Targets: back ends that run a Schedule or a Graph."""
