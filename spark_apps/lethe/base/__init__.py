"""Names, ids, errors and small types that every other package of Lethe may use. No I/O."""
