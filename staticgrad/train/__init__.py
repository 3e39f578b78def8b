"""Training: Trainer, its loops, data, callbacks, metrics, saved states."""
