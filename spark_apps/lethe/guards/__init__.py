"""Decides whether a Dataset or a run may use a table, a URI or a buffer: boundaries and claims. No I/O."""
