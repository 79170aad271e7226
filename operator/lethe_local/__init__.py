"""Lethe on one machine without a cluster: a small API server, and runs as processes. The operator and the YAML are the same."""
