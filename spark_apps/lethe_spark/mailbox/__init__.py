"""A mailbox of runs: of the committer, and of the warm driver. See docs/committer.md."""
