"""The supervisor of a warm driver.

It takes small runs from the mailbox of its namespace and hands them, one at a time, to a Spark session in a process of
its own (`lethe_spark.apps.warm_session`). See docs/warm-drivers.md.
"""
