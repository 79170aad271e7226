"""The committer: one small process per watched namespace, which carries out runs that write no data files.

It uses no Spark, so a run does not wait for Spark to start: see docs/committer.md.
"""
