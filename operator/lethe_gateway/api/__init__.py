"""The routes, and the documents that they answer."""
