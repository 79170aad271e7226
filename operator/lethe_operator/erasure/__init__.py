"""Erasures: when a run checks them, and the signature of their records."""
