"""Status events: what the operator publishes about the batches of a Dataset. Pure."""
