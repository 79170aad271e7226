"""Tests on real servers (S3, PostgreSQL, queues, REST catalogs) without Spark. Their JVM, if any, is the server's."""

from tests.support.fixtures import buffer, lake, s3

__all__ = ["buffer", "lake", "s3"]
