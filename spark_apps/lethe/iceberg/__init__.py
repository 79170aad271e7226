"""Reads catalogs, metadata and manifests of Iceberg tables with PyIceberg. I/O; few of its modules are pure."""
