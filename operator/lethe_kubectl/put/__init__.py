"""`lethe put`: a local folder of files becomes one batch in the buffer of a Dataset."""
