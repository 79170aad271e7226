"""The gateway: an HTTP service that shows Datasets, batches, restatements, runs and erasures to people and programs."""
