"""The specs and statuses of Lethe's resources, and the documents that the operator and its runs exchange. No I/O."""
