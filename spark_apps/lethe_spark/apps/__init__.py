"""Processes of the Spark image, from the container's first process to the Spark session of a run."""
