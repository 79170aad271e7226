"""The only readers of the world. I/O; everything with a time limit, nothing decided here."""
