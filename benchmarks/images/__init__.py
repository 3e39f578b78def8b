"""Convolutions and pools: cases, and a module for each library that computes them.

Such a module has ``ways(case, what)``: for each layout of memory, "first" (channels
first) or "last", a function that computes n times and one that gives the result as
NumPy's, channels first.
"""
