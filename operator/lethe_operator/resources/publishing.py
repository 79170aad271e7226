"""The settings of the publisher of status events, and what is observed of it. Pure."""

from enum import StrEnum
from typing import Final, Literal

from lethe.base.verdict import Verdict
from lethe.contract.kubernetes import MIB
from lethe.contract.schema import ApiModel
from pydantic import Field, model_validator


class ContentMode(StrEnum):
    """Where a message has the attributes of its event."""

    BINARY = "Binary"
    """In headers; the body is the content."""
    STRUCTURED = "Structured"
    """In the body, with the content."""


class StartedFrom(StrEnum):
    """Where the publishing of a table starts."""

    BEGINNING = "Beginning"
    """The whole history that the table has retained follows."""
    HEAD = "Head"
    """Only what is committed from now on follows."""


class HttpSinkSettings(ApiModel):
    """A receiver of status events by HTTP."""

    url: str = Field(pattern=r"^https?://[^/\s]+")
    mode: ContentMode = ContentMode.BINARY
    timeout_seconds: float = Field(default=10, gt=0)
    """Until the receiver answers a request."""


class KafkaSinkSettings(ApiModel):
    """A topic for status events."""

    bootstrap_servers: str = Field(min_length=1)
    """Host:port, comma-separated."""
    topic: str = Field(pattern=r"^[A-Za-z0-9._-]{1,249}$")
    mode: ContentMode = ContentMode.BINARY
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    timeout_seconds: float = Field(default=30, gt=0)
    """Until all brokers have acknowledged some messages."""


class OpenLineageSettings(HttpSinkSettings):
    """A receiver of OpenLineage's RunEvents by HTTP, such as Marquez."""

    namespace: str = Field(default="lethe", min_length=1)  # of the jobs


class EventsSettings(ApiModel):
    """The publisher of status events."""

    enabled: bool = False
    http: HttpSinkSettings | None = None
    kafka: KafkaSinkSettings | None = None
    open_lineage: OpenLineageSettings | None = None
    """Besides a sink of status events, or alone."""
    start: StartedFrom = StartedFrom.HEAD
    """Where the history of tables begins that existed before events were enabled. Other tables begin at their beginning."""
    source_prefix: str = Field(default="", pattern=r"^[^\s]*$")
    """Put before the path of the Dataset in `source`, such as the URL of the cluster."""
    max_event_bytes: int = Field(default=64 * 1024, ge=16 * 1024, le=16 * MIB)
    """Bytes. The content of an event is at most this large. 64 KiB is what every intermediary of CloudEvents must forward."""
    workers: int = Field(default=2, ge=1, le=16)
    """Threads that publish, each one table at a time."""
    # Seconds. Pauses after a failure: the first one, and the longest.
    retry_base_seconds: float = Field(default=1, gt=0)
    retry_max_seconds: float = Field(default=60, gt=0)

    @model_validator(mode="after")
    def _one_sink(self) -> "EventsSettings":
        if self.http is not None and self.kafka is not None:
            raise ValueError("set either http or kafka")
        if self.enabled and not (self.http or self.kafka or self.open_lineage):
            raise ValueError("set either http or kafka, or openLineage")
        return self


NO_TROUBLE: Final = Verdict("", "")
"""Every event is delivered."""
