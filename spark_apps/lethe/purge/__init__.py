"""Writes Parquet files without the rows of deleted batches, and copies row groups that lose none. I/O."""
