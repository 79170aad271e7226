"""Hypothesis as these tests use it: the same examples each time, and no deadline, since a busy machine is no failure."""

from hypothesis import settings

settings.register_profile("lethe", deadline=None, derandomize=True)
settings.load_profile("lethe")
