"""Reads the rows of a table with PyIceberg and Arrow, and leaves out those that the ledger deletes. I/O."""
