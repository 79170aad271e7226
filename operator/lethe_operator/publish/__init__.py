"""Publishes status events. I/O, in threads of its own: neither a reconcile nor a run waits for it.

The ledger of a table is the outbox: events are the differences of consecutive versions, so nothing must be stored when something
happens. A cursor beside the table says how far they are delivered.
"""
