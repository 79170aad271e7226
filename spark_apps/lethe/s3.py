"""S3 through boto3, configured by PyIceberg's properties. I/O.

PyIceberg's FileIO can neither list nor create an object only if there is none.
"""

import threading
from collections.abc import Mapping
from typing import Any, Final

import boto3
from botocore.config import Config

# boto3 makes clients from a session that all threads share, and that is not safe to share while it does.
_ONE_AT_A_TIME: Final = threading.Lock()


def s3_client(properties: Mapping[str, str], attempts: int = 4) -> Any:
    """A boto3 client; short time-outs, so that a store that is away is noticed in seconds.

    Args:
        attempts: How often a request is sent before it counts as failed.
    """
    config = Config(
        connect_timeout=5,
        read_timeout=20,
        retries={"total_max_attempts": attempts, "mode": "standard"},
        s3={"addressing_style": "path" if properties.get("s3.endpoint") else "auto"},
    )
    with _ONE_AT_A_TIME:
        return boto3.client(
            "s3",
            endpoint_url=properties.get("s3.endpoint"),
            region_name=properties.get("s3.region"),
            aws_access_key_id=properties.get("s3.access-key-id"),
            aws_secret_access_key=properties.get("s3.secret-access-key"),
            aws_session_token=properties.get("s3.session-token"),
            config=config,
        )
