"""Runs and their attempts: what is started, with which objects, what became of it."""
