"""Tests on real servers (S3, PostgreSQL, queues, REST catalogs) without Spark. Their JVM, if any, is the server's."""

from tests.support.fixtures import broker, buffer, lake, queues, s3, stores

__all__ = ["broker", "buffer", "lake", "queues", "s3", "stores"]
