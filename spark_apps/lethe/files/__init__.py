"""Decides from metadata which data files hold tombstoned rows, and which native deletes hide them. No I/O."""
