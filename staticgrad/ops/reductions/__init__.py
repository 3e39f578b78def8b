"""Reductions, running results, sorting, and operations on groups of elements."""
