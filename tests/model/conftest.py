"""The long walks share the session of the Spark tests."""

from tests.spark.conftest import lake, spark

__all__ = ["lake", "spark"]
