"""The work of runs: consolidation, restatement, vacuum and erasure, and the clean-up at the end of each."""
