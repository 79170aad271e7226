"""S3 through boto3, configured by PyIceberg's properties. I/O.

PyIceberg's FileIO can neither list nor create an object only if there is none.
"""

from collections.abc import Mapping
from typing import Any

from lethe.storage import aws


def s3_client(properties: Mapping[str, str], attempts: int = 4) -> Any:
    """A boto3 client; short time-outs, so that a store that is away is noticed in seconds.

    Args:
        attempts: How often a request is sent before it counts as failed.
    """
    style = "path" if properties.get("s3.endpoint") else "auto"
    return aws.client("s3", properties, attempts, read_timeout_seconds=20, s3={"addressing_style": style})
