"""The committer: one small process per watched namespace, which carries out runs that change only metadata.

It uses no Spark, so a run does not wait for Spark to start: see docs/committer.md.
"""
