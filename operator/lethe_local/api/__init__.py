"""The API server of `lethe local`: objects in a SQLite file, served over HTTPS on the loopback. I/O: a port, a file."""
