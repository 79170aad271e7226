"""The demo of Lethe on one machine: a year of flights is promoted, restated, erased and vacuumed."""
