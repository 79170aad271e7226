"""Finds rows to purge or erase in a table, and what a storage still has of files that were removed. I/O."""
