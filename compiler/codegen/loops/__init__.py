"""Kernel source of loop nests."""
