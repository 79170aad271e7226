"""The inlet's settings, and the Kafka clusters in `kafka.yaml` of an administrator's Secret. I/O: that file."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from lethe.base.errors import InputError
from lethe.contract.schema import ApiModel
from pydantic import Field, ValidationError


class InvalidInletSettings(ValueError):
    """An environment variable is missing or invalid; the message names it."""


@dataclass(frozen=True)
class InletSettings:
    """What the environment of the process sets; only the namespace and the file of clusters have no default."""

    namespace: str
    """The namespace whose Datasets it serves."""
    # The file with the Kafka clusters.
    clusters_file: Path
    log_level: str = "INFO"
    metrics_port: int | None = None
    """The port of /metrics; None: no metrics are served."""
    log_format: str = ""
    """`json`, or "" for text."""


def from_environment(environ: Mapping[str, str]) -> InletSettings:
    """Read the settings from the environment.

    Raises:
        InvalidInletSettings: An environment variable has an invalid value; the message names it.
    """
    for name in ("POD_NAMESPACE", "LETHE_INLET_CLUSTERS"):
        if not environ.get(name):
            raise InvalidInletSettings(f"{name} is not set. The chart sets it; see docs/inlet.md.")
    level = environ.get("LETHE_LOG_LEVEL") or "INFO"
    port = environ.get("LETHE_METRICS_PORT") or "0"
    if not port.isdecimal():
        raise InvalidInletSettings(f"LETHE_METRICS_PORT is {port!r}. It must be the number of a port.")
    return InletSettings(
        environ["POD_NAMESPACE"],
        Path(environ["LETHE_INLET_CLUSTERS"]),
        level.upper(),
        int(port) or None,
        environ.get("LETHE_LOG_FORMAT", ""),
    )


class Registry(ApiModel):
    """A schema registry that speaks Confluent's protocol."""

    url: str = Field(pattern=r"^https?://")
    username: str = ""
    """For basic authentication; "": none."""
    password: str = ""
    ca_file: str = ""
    """The certificates to trust; "": those of the system."""


class Cluster(ApiModel):
    """A Kafka cluster."""

    properties: Mapping[str, str | int | bool]
    """Of librdkafka: bootstrap.servers, security.protocol, sasl.…, ssl.…."""
    schema_registry: Registry | None = None
    """None: there is none."""
    topics: tuple[str, ...] | None = None
    """Patterns of "cluster/topic" that the namespace may read; None: every topic."""


class _File(ApiModel):
    clusters: Mapping[str, Cluster] = Field(default_factory=dict)


def read_clusters(file: Path) -> Mapping[str, Cluster]:
    """The clusters by name.

    Raises:
        InputError: `InvalidKafkaFile`, which names fields and no values.
    """
    try:
        document: Any = yaml.safe_load(file.read_text()) or {}
        return _File.model_validate(document).clusters
    except ValidationError as e:
        fields = sorted({".".join(map(str, p["loc"])) for p in e.errors(include_input=False)})
        raise _invalid(file, f"these fields are wrong: {', '.join(fields[:5])}") from None
    except OSError as e:
        raise _invalid(file, f"it cannot be read ({e.strerror})") from None
    except yaml.YAMLError:
        raise _invalid(file, "it is not YAML") from None


def _invalid(file: Path, why: str) -> InputError:
    return InputError(
        "InvalidKafkaFile",
        f"{file}: {why}. Correct the Secret of the chart's value inlet.clusters; docs/inlet.md shows it.",
    )
