"""Tables, their batches and their ledgers, read with the credentials of the gateway."""
