"""Merges small data files into one with Arrow, in Spark's Python workers, without Spark's rows."""
