"""Open erasures: search metadata and storage for erased rows, remove what holds them, and write the records."""
