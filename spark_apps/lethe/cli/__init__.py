"""The command line: `lethe ledger`, `batches`, `read`, `doctor`. No Spark; nothing here changes a table."""
