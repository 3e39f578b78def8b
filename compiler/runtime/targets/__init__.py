"""The targets: what turns a computation into numbers."""
