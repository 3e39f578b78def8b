"""Hooks on gradients and taps on tensors."""
