"""What an apply of YAML files would change: in resources, and in tables, files and bytes. `lethe plan`."""
