"""Uploads: batches that clients write into buffers through the gateway."""
