"""Lethe in orchestrators. Each module needs the package that it is named after, and is imported by its users only."""
