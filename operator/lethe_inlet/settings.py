"""The settings of the inlet, from environment variables. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


class InvalidSettings(ValueError):
    """An environment variable is missing or invalid; the message names it."""


@dataclass(frozen=True)
class Settings:
    # The namespace whose Datasets it serves.
    namespace: str
    # The file with the Kafka clusters.
    clusters_file: Path
    log_level: str = "INFO"
    # The port of /metrics; None: no metrics are served.
    metrics_port: int | None = None
    log_format: str = ""  # "json", or "" for text


def from_environment(environ: Mapping[str, str]) -> Settings:
    """Raises: InvalidSettings."""
    for name in ("POD_NAMESPACE", "LETHE_INLET_CLUSTERS"):
        if not environ.get(name):
            raise InvalidSettings(f"{name} is not set. The chart sets it; see docs/inlet.md.")
    level = environ.get("LETHE_LOG_LEVEL") or "INFO"
    port = environ.get("LETHE_METRICS_PORT") or "0"
    if not port.isdecimal():
        raise InvalidSettings(f"LETHE_METRICS_PORT is {port!r}. It must be the number of a port.")
    return Settings(
        environ["POD_NAMESPACE"],
        Path(environ["LETHE_INLET_CLUSTERS"]),
        level.upper(),
        int(port) or None,
        environ.get("LETHE_LOG_FORMAT", ""),
    )
