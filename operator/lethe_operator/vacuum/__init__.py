"""Vacuums: which VacuumPolicy applies, which trigger has fired, whether a vacuum starts, and its history."""
