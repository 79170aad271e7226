"""Datasets: what is observed of buffer, table and objects, everything that is decided about one, and its status."""
