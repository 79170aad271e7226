"""Decides when erased rows have left a table and its storage, and makes the signed record of it. No I/O."""
