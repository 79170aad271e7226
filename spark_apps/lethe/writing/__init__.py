"""Writes rows as data files of a table with Arrow, in Spark's Python workers, without Spark's rows."""
