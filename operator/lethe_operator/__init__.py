"""The operator: watches the resources of `lethe.dev`, decides, launches runs, and writes their outcomes to statuses. No Spark."""
