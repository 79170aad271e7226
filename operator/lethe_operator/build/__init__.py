"""PURE: values -> Kubernetes objects. No I/O, no clock."""
