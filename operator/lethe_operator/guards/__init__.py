"""What keeps runs from starting: limits of the administrator, and states of table, buffer and resources. Pure."""
