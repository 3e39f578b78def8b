"""Run time of the CUDA target: driver, compiler, memory and launches.

Nothing here imports a CUDA package or loads a driver until a graph is compiled with
``target="cuda"``.
"""
