"""Reports on gradients: their paths, and whether training is healthy."""
