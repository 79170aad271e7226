"""The ledger of a table: its values, its file formats and its changes. Pure: `lethe.ledger_store` does the I/O."""
