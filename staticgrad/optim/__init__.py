"""Optimisers: graph expressions for the new values of parameters."""

from staticgrad.optim.adam import Adam, AdamW
from staticgrad.optim.optimizer import Optimizer
from staticgrad.optim.sgd import SGD

__all__ = ["SGD", "Adam", "AdamW", "Optimizer"]
