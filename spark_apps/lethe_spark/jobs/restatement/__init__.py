"""Restatement: carry out a group of Reverts, Replays, Undos and Erases in one snapshot."""
