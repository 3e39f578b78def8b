"""Memory budgets: what is evicted and computed again to fit."""
