"""Matrix products: the choice between OpenBLAS and tile kernels, and their drivers."""
