"""Sparse Jacobians and Hessians: patterns, colourings, compressed products."""
