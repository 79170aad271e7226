"""Datasets, Restatements and VacuumPolicies, as the API server has them."""
