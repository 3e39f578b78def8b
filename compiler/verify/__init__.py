"""Verifiers of Schedules and Plans; they share no code with what they check."""
