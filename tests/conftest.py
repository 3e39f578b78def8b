"""Settings of the property tests: the same examples in every run, no deadline."""

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")
