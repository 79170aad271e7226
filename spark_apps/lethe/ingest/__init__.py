"""Reads, checks and converts the files of batches with Arrow. I/O on the files; conversions and checks are pure."""
