"""Vacuum: purge tombstoned rows from data files, merge small files, and expire old snapshots."""
