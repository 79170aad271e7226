"""Creates boto3 clients of S3 and SQS, configured by the properties of a catalog. I/O.

A property of the service (`sqs.region`) takes precedence over the one of S3 (`s3.region`). All access key properties are taken
from the same service. Each service has its own endpoint property; without it, boto3's default applies.
"""

import threading
from collections.abc import Mapping
from typing import Any, Final

import boto3
import botocore.session
from botocore.config import Config

from lethe.base.names import VENDED_FOR

# boto3 creates clients from a session that all threads share. Creating a client is not thread-safe.
_ONE_AT_A_TIME: Final = threading.Lock()


def client(service: str, properties: Mapping[str, str], attempts: int, read_timeout_seconds: int, **config: Any) -> Any:
    """A boto3 client. The connection timeout is 5 seconds.

    Args:
        service: "s3" or "sqs".
        attempts: How often a request is sent before it counts as failed.
        config: Further arguments of botocore's Config.
    """
    credentials = None
    if service == "s3" and VENDED_FOR in properties:
        from lethe.storage.vended import for_boto3  # imports PyIceberg's catalog, which few callers need

        properties, credentials = for_boto3(properties)
    keys = service if f"{service}.access-key-id" in properties else "s3"
    settings = Config(
        connect_timeout=5,
        read_timeout=read_timeout_seconds,
        retries={"total_max_attempts": attempts, "mode": "standard"},
        **config,
    )
    with _ONE_AT_A_TIME:
        if credentials is not None:
            session = botocore.session.get_session()
            session._credentials = credentials  # botocore has no public way to set refreshable credentials
            return boto3.Session(botocore_session=session).client(
                service,
                endpoint_url=properties.get(f"{service}.endpoint"),
                region_name=properties.get(f"{service}.region") or properties.get("client.region"),
                config=settings,
            )
        return boto3.client(
            service,
            endpoint_url=properties.get(f"{service}.endpoint"),
            region_name=properties.get(f"{service}.region") or properties.get("s3.region"),
            aws_access_key_id=properties.get(f"{keys}.access-key-id"),
            aws_secret_access_key=properties.get(f"{keys}.secret-access-key"),
            aws_session_token=properties.get(f"{keys}.session-token"),
            config=settings,
        )
