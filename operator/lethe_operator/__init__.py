"""The operator: watches the resources of `lethe.dev`, decides, launches runs, mirrors what became of them. No Spark."""
