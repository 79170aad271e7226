"""Restatements: their assessment, their order, their outcome and their status."""
