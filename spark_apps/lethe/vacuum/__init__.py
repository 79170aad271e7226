"""Plans the maintenance of a table: purges, compaction, manifests, and which snapshots to expire. Pure."""
