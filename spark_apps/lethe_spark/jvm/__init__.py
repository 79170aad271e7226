"""Iceberg's Java library through py4j: tables, data files, scans and commits, with or without a Spark session."""
