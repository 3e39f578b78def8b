"""Derivatives of graphs: reverse and forward mode, of loops and branches as well."""
