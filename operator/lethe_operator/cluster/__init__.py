"""The Kubernetes API: its client, a cache of watched objects, the queue of keys, leadership, statuses. Knows no subject."""
