"""The committer: a small process, one for each watched namespace, that carries out runs which change metadata alone.

It needs no Spark, and so no half a minute of starting it: see docs/committer.md.
"""
