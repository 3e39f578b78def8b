"""Optimisers: graph expressions for the new values of parameters."""

from staticgrad.optim.adam import Adam, AdamW
from staticgrad.optim.clipping import (
    Clip,
    clip_by_global_norm,
    clip_by_value,
    global_norm,
)
from staticgrad.optim.optimizer import Optimizer
from staticgrad.optim.rmsprop import RMSprop
from staticgrad.optim.schedules import RateSchedule as Schedule
from staticgrad.optim.schedules import cosine, exponential, step_decay
from staticgrad.optim.sgd import SGD, Momentum

__all__ = [
    "SGD", "Adam", "AdamW", "Clip", "Momentum", "Optimizer", "RMSprop", "Schedule",
    "clip_by_global_norm", "clip_by_value", "cosine", "exponential", "global_norm",
    "step_decay",
]  # fmt: skip
