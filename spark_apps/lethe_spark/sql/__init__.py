"""Servers between Spark's Iceberg client and the catalogs, and searches for rows in Spark's Python workers."""
