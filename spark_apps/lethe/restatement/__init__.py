"""Plans Restatements on a ledger: their order, changes and results, or why one is refused. Pure."""
