"""PURE: a Dataset, its world and the time -> what to do. No I/O, no clock, nothing mutated."""
