"""Decides which objects of a buffer are batches, and what is uploaded, promoted, moved or deleted. No I/O."""
