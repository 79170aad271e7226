"""Changes of a table: prepare it, read it with its ledger, plan, and commit the next ledger by compare-and-set."""
