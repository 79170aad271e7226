"""The model test uses the Spark session of the Spark tests."""

from tests.spark.conftest import lake, spark

__all__ = ["lake", "spark"]
