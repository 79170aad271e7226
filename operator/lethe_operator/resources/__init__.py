"""The custom resources, and what the operator observes of the cluster and the tables, as frozen values. Pure."""
