"""Creates obstore clients of object stores from the properties of a catalog. I/O.

Properties have the names that PyIceberg and Iceberg's Java library use. Without credentials in them, S3 uses those that boto3
finds, and other stores use those of their platform. Credentials that a catalog vends are renewed before they expire.
"""

import os
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import boto3
from obstore.store import AzureStore, GCSStore, S3Store

from lethe.base.names import VENDED_FOR
from lethe.storage.azure import AzureAccount
from lethe.storage.properties import with_vended
from lethe.uri import Backend

Client = S3Store | GCSStore | AzureStore

_RENEWED_AFTER: Final = timedelta(minutes=5)
_CONNECT_TIMEOUT: Final = timedelta(seconds=5)
_READ_TIMEOUT: Final = timedelta(seconds=20)
"""The longest wait for the next byte of an answer."""
_TIMEOUT: Final = timedelta(minutes=30)
"""The longest time of a whole request, including its body."""
_BACKOFF: Final[Any] = {"init_backoff": timedelta(milliseconds=200), "max_backoff": timedelta(seconds=5), "base": 2}
_BOTO3: Final = threading.Lock()
"""Creating a boto3 session is not thread-safe."""

_Current = Callable[[], tuple[Mapping[str, str], datetime | None]]
"""Returns the properties that are valid now, and when they must be read again; None: they do not change."""


def client_of(backend: Backend, bucket: str, properties: Mapping[str, str], attempts: int = 4) -> Client:
    """A client of one bucket or container. The connection timeout is 5 seconds.

    Args:
        bucket: For Azure `container@account.host`, or `container` if the properties name the account.
        attempts: How often a request is sent before it counts as failed.
    """
    current = _vended(properties)
    options: dict[str, Any] = {
        "client_options": {
            "connect_timeout": _CONNECT_TIMEOUT,
            "read_timeout": _READ_TIMEOUT,
            "timeout": _TIMEOUT,
            "allow_http": True,
        },
        "retry_config": {
            "max_retries": attempts - 1,
            "backoff": _BACKOFF,
            "retry_timeout": timedelta(minutes=1),
        },
    }
    match backend:
        case Backend.S3:
            return _s3(bucket, current, options)
        case Backend.GCS:
            return _gcs(bucket, current, options)
        case Backend.AZURE:
            return _azure(bucket, current, options)
        case Backend.LOCAL:
            raise AssertionError("local folders need no client")


def _vended(properties: Mapping[str, str]) -> _Current:
    if VENDED_FOR not in properties:
        return lambda: (properties, None)
    from lethe.storage.vended import vendor_of  # imports PyIceberg's catalog, which few callers need

    vendor = vendor_of(properties)

    def current() -> tuple[Mapping[str, str], datetime | None]:
        vended = vendor.now()
        left = None if vended.due is None else timedelta(seconds=max(vended.due - time.monotonic(), 0.0))
        return with_vended(properties, vended.config), None if left is None else datetime.now(UTC) + left

    return current


def _s3(bucket: str, current: _Current, options: Mapping[str, Any]) -> S3Store:
    properties, _ = current()
    endpoint = properties.get("s3.endpoint") or os.environ.get(
        "AWS_ENDPOINT_URL_S3", os.environ.get("AWS_ENDPOINT_URL")
    )
    own = "s3.access-key-id" in properties
    session = None if own else _session()
    credentials_found = None if session is None else session.get_credentials()
    region = properties.get("s3.region") or properties.get("client.region")

    def credentials() -> Any:
        if own:
            now, expires = current()
            return {
                "access_key_id": now["s3.access-key-id"],
                "secret_access_key": now["s3.secret-access-key"],
                "token": now.get("s3.session-token"),
                "expires_at": expires,
            }
        if credentials_found is None:
            raise LookupError("no credentials for S3: set s3.access-key-id and s3.secret-access-key")
        frozen = credentials_found.get_frozen_credentials()  # botocore renews them
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": datetime.now(UTC) + _RENEWED_AFTER,
        }

    return S3Store(
        bucket,
        config={
            **({"endpoint": endpoint.rstrip("/")} if endpoint else {}),
            "region": region or (session and session.region_name) or os.environ.get("AWS_REGION") or "us-east-1",
            "virtual_hosted_style_request": not endpoint and "." not in bucket,
        },
        credential_provider=credentials,
        **options,
    )


def _gcs(bucket: str, current: _Current, options: Mapping[str, Any]) -> GCSStore:
    properties, _ = current()
    host = properties.get("gcs.service.host")
    config: Any = {"base_url": host.rstrip("/")} if host else {}
    if properties.get("gcs.no-auth") == "true":
        return GCSStore(bucket, config={**config, "skip_signature": True}, **options)
    if "gcs.oauth2.token" not in properties:
        return GCSStore(bucket, config=config, **options)

    def credentials() -> Any:
        now, expires = current()
        return {"token": now["gcs.oauth2.token"], "expires_at": expires}

    return GCSStore(bucket, config=config, credential_provider=credentials, **options)


def _azure(bucket: str, current: _Current, options: Mapping[str, Any]) -> AzureStore:
    properties, _ = current()
    container = bucket.partition("@")[0]
    account = AzureAccount.of(bucket, properties)
    config: Any = account.of_obstore()
    if not account.sas_token:
        return AzureStore(container, config=config, **options)

    def credentials() -> Any:
        now, expires = current()
        return {"sas_token": AzureAccount.of(bucket, now).sas_token, "expires_at": expires}

    return AzureStore(container, config=config, credential_provider=credentials, **options)


def _session() -> Any:
    with _BOTO3:
        return boto3.Session()
