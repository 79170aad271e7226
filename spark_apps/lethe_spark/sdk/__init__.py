"""For users' Spark jobs without the operator: write and revert batches, and read tables without tombstoned rows."""
