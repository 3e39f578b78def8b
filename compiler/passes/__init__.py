"""Passes: pure functions Graph -> Graph, the same object where nothing changes."""
