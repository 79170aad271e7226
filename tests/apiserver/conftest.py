"""Tests on an API server of Kubernetes with its etcd, and on the servers of tests/services. There are no nodes."""

from tests.support.fixtures import buffer, lake, s3

__all__ = ["buffer", "lake", "s3"]
