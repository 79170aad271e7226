"""Consolidation: find batches in the buffer, write or register their files, and promote each batch exactly once."""
