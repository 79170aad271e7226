"""Object stores behind one interface, with their clients and credentials, and queues. I/O."""
