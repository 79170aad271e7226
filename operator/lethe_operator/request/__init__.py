"""Erasures of a subject from several Datasets: the Restatement that asks for it, and one Restatement per Dataset."""
