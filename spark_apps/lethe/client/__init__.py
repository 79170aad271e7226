"""Programs that talk to Lethe's gateway."""
