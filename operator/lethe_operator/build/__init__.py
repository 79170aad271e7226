"""Builds Kubernetes objects from values. Pure: no I/O, no clock."""
