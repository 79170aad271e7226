"""`python -m lethe.cli` is `lethe`."""

from lethe.cli.main import main

main()
