"""Settings of the property tests: the same examples in every run, no deadline."""

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


def pytest_itemcollected(item):
    """Names of tests are the same in every process, or pytest-xdist runs none."""
    assert " at 0x" not in item.nodeid, item.nodeid
