"""Sends requests to a REST catalog as its configuration says: with which certificates, through which proxy, and signed. I/O.

PyIceberg has the same properties, apart from those of the proxy, whose names are those of Iceberg's Java library. Without these,
the proxy is that of the environment, as for PyIceberg.
"""

import hashlib
import os
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import boto3
import certifi
import urllib3
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.exceptions import BotoCoreError
from lethe.base.errors import InputError
from requests.utils import (
    get_auth_from_url,
    get_environ_proxies,
    prepend_scheme_if_needed,
    select_proxy,
    urldefragauth,
)

AUTH_TYPE: Final = "rest.auth.type"
SIGV4: Final = "sigv4"
SIGNED: Final = "rest.sigv4-enabled"
_PROXY: Final = "rest.client.proxy."
# Beginnings of properties of Iceberg's Java library that concern the connection to a catalog.
OF_CONNECTION: Final = (SIGNED, AUTH_TYPE, "rest.auth.sigv4.", _PROXY, "rest.client.tls.")
# Seconds to connect, and until the catalog sends something. The client has limits of its own.
_TIMEOUTS: Final = urllib3.Timeout(connect=5.0, read=300.0)
_CONNECTIONS: Final = 16  # that are kept


class Upstream:
    """The connections to the host of a catalog."""

    def __init__(self, name: str, uri: str, properties: Mapping[str, str]) -> None:
        """Create `Upstream`.

        Args:
            name: Of the catalog.
            properties: Of the catalog, in the configuration.

        Raises:
            InputError: `UnsupportedCatalog`.
        """
        self._name, self._properties = name, properties
        self._session = _session(name, properties) if is_signed(properties) else None
        settings: dict[str, Any] = {"maxsize": _CONNECTIONS, "timeout": _TIMEOUTS}
        if urlsplit(uri).scheme == "https":
            settings |= _certificates(properties)
        self._through_proxy: dict[str, str] | None = None  # headers, if the proxy reads the requests
        address, login = _proxy(uri, properties)
        if not address:
            self._pool: Any = urllib3.PoolManager(**settings).connection_from_url(uri)
            return
        headers = urllib3.make_headers(proxy_basic_auth=login)
        self._pool = urllib3.ProxyManager(address, proxy_headers=headers, **settings).connection_from_url(uri)
        if urlsplit(uri).scheme != "https":
            self._through_proxy = dict(headers)

    def send(self, method: str, uri: str, body: bytes, headers: Mapping[str, str]) -> Any:
        """Send a request to the same host. Does not change its path, which may have encoded dots and slashes.

        Raises:
            urllib3.exceptions.HTTPError: The catalog does not respond.
            InputError: `UnsupportedCatalog`.
        """
        sent = self._signed(method, uri, body, headers) if self._session is not None else dict(headers)
        at = urlsplit(uri)
        target = uri if self._through_proxy is not None else uri.removeprefix(f"{at.scheme}://{at.netloc}")
        sent |= self._through_proxy or {}
        how: dict[str, Any] = {"body": body or None, "headers": sent, "retries": False, "redirect": False}
        return self._pool.urlopen(method, target, assert_same_host=False, **how)

    def _signed(self, method: str, uri: str, body: bytes, headers: Mapping[str, str]) -> dict[str, str]:
        """The headers of a request, with its signature (SigV4)."""
        assert self._session is not None
        # The token is for a catalog behind the service that checks the signature.
        token = {f"Original-{k}": v for k, v in headers.items() if k.lower() == "authorization"}
        others = {k: v for k, v in headers.items() if k.lower() != "authorization"}
        others["x-amz-content-sha256"] = hashlib.sha256(body).hexdigest()
        try:
            credentials = self._session.get_credentials()
            if credentials is None:
                raise InputError("UnsupportedCatalog", f"{self._name}: there are no credentials to sign requests with.")
            frozen = credentials.get_frozen_credentials()
        except BotoCoreError as e:
            raise _unsigned(self._name, e) from e
        address, _, query = uri.partition("?")
        params: Any = parse_qsl(query, keep_blank_values=True)
        request = AWSRequest(method, address, others, body, params)
        service = self._properties.get("rest.signing-name", "execute-api")
        SigV4Auth(frozen, service, self._session.region_name).add_auth(request)
        return {**token, **dict(request.headers.items())}


def is_signed(properties: Mapping[str, str]) -> bool:
    """Whether requests to a catalog are signed (SigV4)."""
    return properties.get(SIGNED, "").lower() == "true" or properties.get(AUTH_TYPE) == SIGV4


def _proxy(uri: str, properties: Mapping[str, str]) -> tuple[str, str | None]:
    """The proxy for a URI, and the login for it. "": there is none.

    That of the catalog's properties, else that of the process's environment, which PyIceberg uses.
    """
    own = {k.removeprefix(_PROXY): v for k, v in properties.items() if k.startswith(_PROXY)}
    if own.get("hostname"):
        login = f"{own['username']}:{own.get('password', '')}" if "username" in own else None
        return f"http://{own['hostname']}:{own.get('port', '80')}", login
    proxy = select_proxy(uri, get_environ_proxies(uri))
    if not proxy:
        return "", None
    address = prepend_scheme_if_needed(proxy, "http")
    user, password = get_auth_from_url(address)
    return urldefragauth(address), f"{user}:{password}" if user else None


def _certificates(properties: Mapping[str, str]) -> dict[str, Any]:
    trusted = properties.get("ssl.cabundle") or os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")
    return {
        "ca_certs": trusted or certifi.where(),
        "cert_file": properties.get("ssl.client.cert"),
        "key_file": properties.get("ssl.client.key"),
    }


def _session(name: str, properties: Mapping[str, str]) -> boto3.Session:
    """The credentials and the region of signatures. Without keys of its own, those of the process."""

    def own(key: str) -> str | None:
        return properties.get(f"rest.{key}") or properties.get(f"client.{key}")

    try:
        session = boto3.Session(
            profile_name=properties.get("client.profile-name"),
            region_name=properties.get("rest.signing-region") or properties.get("client.region"),
            aws_access_key_id=own("access-key-id"),
            aws_secret_access_key=own("secret-access-key"),
            aws_session_token=own("session-token"),
        )
    except BotoCoreError as e:
        raise _unsigned(name, e) from e
    if not session.region_name:
        raise InputError(
            "UnsupportedCatalog", f"{name}: requests are signed, and no region is known. Set rest.signing-region."
        )
    return session


def _unsigned(name: str, error: BotoCoreError) -> InputError:
    return InputError("UnsupportedCatalog", f"{name}: requests cannot be signed ({type(error).__name__}).")
