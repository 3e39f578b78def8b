"""Order and fusion: which nodes share one kernel."""
