"""The settings of the gateway, from environment variables. Pure, apart from default arguments."""

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import TypeVar

from lethe.base.errors import InvalidSettings
from lethe.contract.kubernetes import Bytes
from lethe.contract.schema import ApiModel
from lethe_operator.resources.boundaries import UNLIMITED, Boundaries, parse_boundaries
from pydantic import Field, ValidationError

S = TypeVar("S", bound=ApiModel)
Network = IPv4Network | IPv6Network
MIB = 1 << 20
GIB = 1 << 30


class CallerLimits(ApiModel):
    """What callers may use of one process."""

    requests_per_second: float = Field(default=20, gt=0)
    """Of one caller, on average."""
    burst: int = Field(default=100, ge=1)
    """Requests of one caller at once, before the average counts."""
    concurrent_per_caller: int = Field(default=8, ge=1)
    """Requests of one caller at the same time."""
    concurrent: int = Field(default=32, ge=1)
    """Requests of all callers at the same time."""
    failures_per_minute: int = Field(default=60, ge=1)
    """Requests of one address with a missing or invalid token."""
    body_bytes: Bytes = Field(default=1 * MIB, ge=0)
    """Of a request's body."""
    request_seconds: float = Field(default=30, gt=0)
    """The longest time for one answer, apart from streams."""
    header_seconds: float = Field(default=10, gt=0)
    """The longest time for a request's first bytes and headers."""
    body_idle_seconds: float = Field(default=10, gt=0)
    """The longest time in which nothing of a request's body arrives."""
    connections: int = Field(default=512, ge=1)
    """Open connections of all callers."""
    streams_per_caller: int = Field(default=4, ge=1)
    """Open streams of changes of one caller."""
    streams: int = Field(default=64, ge=1)
    """Open streams of all callers."""
    stream_events: int = Field(default=1000, ge=1)
    """Events that wait for a slow reader; with more, its stream ends."""


class IndexSettings(ApiModel):
    """The indexes of tables of batches on the local disk."""

    fresh_seconds: float = Field(default=3, ge=0)
    """An answer shows the table as it was at most this long ago."""
    stale_seconds: float = Field(default=300, gt=0)
    """While the catalog is away, answers may be this old."""
    wait_seconds: float = Field(default=10, gt=0)
    """A request waits this long for a first index, then answers 503."""
    idle_seconds: float = Field(default=3600, gt=0)
    """An index without requests in this time is removed."""
    max_bytes: Bytes = Field(default=8 * GIB, gt=0)
    """Of all indexes; above it, the least recently used are removed."""


class UploadSettings(ApiModel):
    """Uploads into buffers."""

    files: int = Field(default=1000, ge=1)
    """Of one upload."""
    whole_bytes: Bytes = Field(default=64 * MIB, ge=5 * MIB)
    """Larger files are sent to the store in parts."""
    part_bytes: Bytes = Field(default=64 * MIB, ge=5 * MIB)
    """The size of each part but the last."""
    through_bytes: Bytes = Field(default=16 * MIB, ge=0)
    """The largest file that is sent through the gateway."""
    through_at_once: int = Field(default=4, ge=1)
    """Files that are sent through the gateway at the same time."""
    complete_at_once: int = Field(default=32, ge=1)
    """Uploads that are completed at the same time."""
    open_per_dataset: int = Field(default=1000, ge=1)
    """Open uploads of one Dataset."""
    open_per_caller: int = Field(default=200, ge=1)
    """Open uploads of one caller in one Dataset."""
    hashed_bytes: Bytes = Field(default=1 * GIB, ge=0)
    """Of the files of an upload that are sent in parts and announced with the SHA-256 of the whole: they are read again."""
    seconds: float = Field(default=300, gt=0)
    """The longest time to send a file through the gateway, or to complete an upload."""
    url_seconds: int = Field(default=3600, ge=60, le=604_800)
    """How long a URL of the store is valid."""
    open_seconds: int = Field(default=86_400, ge=60)
    """An upload that is open for longer is removed."""
    remembered_seconds: int = Field(default=3600, ge=60)
    """How long a completed upload is known."""
    endpoints: Mapping[str, str] = Field(default_factory=dict)
    """How clients reach the stores, by the name of the catalog; others by the catalog's s3.endpoint."""


class ConsoleSettings(ApiModel):
    """The pages for people."""

    enabled: bool = True
    token_header: str = Field(default="", pattern=r"^[A-Za-z0-9-]*$")
    """A header with the caller's token, which an authenticating proxy sets, such as X-Forwarded-Access-Token or Authorization. It
    is believed from `proxies` only. "": people log in with a token.
    """


@dataclass(frozen=True)
class GatewaySettings:
    """The settings of one gateway process, which do not change while it runs."""

    host: str = ""
    """"": all addresses, of IPv4 and of IPv6."""
    port: int = 8443
    tls: tuple[Path, Path] | None = None
    """Files of the certificate chain and its key, in PEM; None: plain HTTP."""
    namespaces: tuple[str, ...] = ("default",)
    """The namespaces whose resources the gateway shows; all others look as if they did not exist."""
    audiences: tuple[str, ...] = ()
    """Audiences of which a token must have one; empty: those of the API server."""
    proxies: tuple[Network, ...] = ()
    """Proxies whose header X-Forwarded-For is believed; for limits of addresses."""
    token_file: Path | None = None
    """A file with the only valid token, which only its owner can read, for `lethe local`; None: Kubernetes checks tokens."""
    # Where indexes are stored.
    index_folder: Path = field(default_factory=lambda: Path(tempfile.gettempdir()) / "lethe-gateway")
    index: IndexSettings = field(default_factory=IndexSettings)
    limits: CallerLimits = field(default_factory=CallerLimits)
    uploads: UploadSettings = field(default_factory=UploadSettings)
    console: ConsoleSettings = field(default_factory=ConsoleSettings)
    boundaries: Boundaries = UNLIMITED
    """Of namespaces: which buffers may be written to."""
    identity_seconds: float = 10
    """How long an accepted token, and a right that was granted, are not checked again."""
    # The port of /metrics; None: no metrics are served.
    metrics_port: int | None = None
    log_level: str = "INFO"
    log_format: str = ""
    """`json`, or "" for text; the access log is always JSON."""


def from_environment(env: Mapping[str, str] = os.environ) -> GatewaySettings:
    """Read the settings from the environment.

    Raises:
        InvalidSettings: An environment variable has an invalid value; the message names it.
    """
    default = GatewaySettings()
    certificate, key = (env.get(f"LETHE_GATEWAY_TLS_{part}", "").strip() for part in ("CERTIFICATE", "KEY"))
    if bool(certificate) != bool(key):
        raise InvalidSettings(
            "set both LETHE_GATEWAY_TLS_CERTIFICATE and LETHE_GATEWAY_TLS_KEY, or neither for plain HTTP"
        )
    namespaces = _names(env.get("LETHE_WATCH_NAMESPACES", "default"))
    if not namespaces or "*" in namespaces:
        raise InvalidSettings(
            "LETHE_WATCH_NAMESPACES must be a comma-separated list of at least one namespace, without '*'"
        )
    token_file, folder = env.get("LETHE_GATEWAY_TOKEN_FILE"), env.get("LETHE_GATEWAY_INDEX_FOLDER")
    return GatewaySettings(
        host=env.get("LETHE_GATEWAY_HOST") or default.host,
        port=_port(env, "LETHE_GATEWAY_PORT", default.port),
        tls=(Path(certificate), Path(key)) if certificate else None,
        namespaces=namespaces,
        audiences=_names(env.get("LETHE_GATEWAY_AUDIENCES", "")),
        proxies=_networks(env, "LETHE_GATEWAY_PROXIES"),
        token_file=Path(token_file) if token_file else None,
        index_folder=Path(folder) if folder else default.index_folder,
        index=_document(IndexSettings, env, "LETHE_GATEWAY_INDEX", "the chart's value gateway.index"),
        limits=_document(CallerLimits, env, "LETHE_GATEWAY_LIMITS", "the chart's value gateway.limits"),
        uploads=_document(UploadSettings, env, "LETHE_GATEWAY_UPLOADS", "the chart's value gateway.uploads"),
        console=_document(ConsoleSettings, env, "LETHE_GATEWAY_CONSOLE", "the chart's value gateway.console"),
        identity_seconds=_seconds(env, "LETHE_GATEWAY_IDENTITY_SECONDS", default.identity_seconds),
        metrics_port=_port(env, "LETHE_METRICS_PORT", 0) or None,
        log_level=(env.get("LETHE_LOG_LEVEL") or default.log_level).upper(),
        log_format=env.get("LETHE_LOG_FORMAT", ""),
    )


def with_files(settings: GatewaySettings, env: Mapping[str, str] = os.environ) -> GatewaySettings:
    """Add the boundaries from LETHE_BOUNDARIES_FILE. Without the variable, there are none. I/O.

    Raises:
        InvalidSettings: An environment variable has an invalid value; the message names it.
        InvalidBoundaries: The file of boundaries is not valid; the message names the field.
    """
    path = env.get("LETHE_BOUNDARIES_FILE")
    if not path:
        return settings
    try:
        text = Path(path).read_text()
    except OSError as e:
        raise InvalidSettings(f"LETHE_BOUNDARIES_FILE names {path}, which cannot be read ({e.strerror})") from None
    return replace(settings, boundaries=parse_boundaries(text, path))


def _document(model: type[S], env: Mapping[str, str], name: str, like: str) -> S:
    try:
        return model.model_validate(json.loads(env.get(name) or "{}"))
    except (json.JSONDecodeError, ValidationError) as e:
        raise InvalidSettings(f"{name} must be JSON like {like}: {e}") from None


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(n.strip() for n in text.split(",") if n.strip()))


def _networks(env: Mapping[str, str], name: str) -> tuple[Network, ...]:
    try:
        return tuple(ip_network(n) for n in _names(env.get(name, "")))
    except ValueError as e:
        raise InvalidSettings(f"{name} must be networks such as 10.0.0.0/8, divided by commas: {e}") from None


def _seconds(env: Mapping[str, str], name: str, default: float) -> float:
    text = env.get(name) or str(default)
    try:
        value = float(text)
    except ValueError:
        value = -1
    if value < 0:
        raise InvalidSettings(f"{name} must be a number of seconds, at least 0, found {text!r}")
    return value


def _port(env: Mapping[str, str], name: str, default: int) -> int:
    text = (env.get(name) or str(default)).strip()
    if not text.isdecimal() or not int(text) < 65536:
        raise InvalidSettings(f"{name} must be a port number, or 0 for any free port, found {text!r}")
    return int(text)
