"""The commands on resources, as `lethe …` and `kubectl lethe …`: in a cluster, or in `lethe local`."""
