"""The resources as frozen values, and what can be observed beside them. Pure."""
