"""Lists, verifies and downloads the jars that Spark needs and PySpark does not contain. I/O: files, network."""
