"""Where a Dataset's batches come from, if Lethe itself reads them: `spec.source`. Pure."""

from enum import StrEnum

from pydantic import Field

from lethe_operator.resources.common import Spec
from lethe_operator.resources.quantity import Bytes


class MessageFormat(StrEnum):
    """What a message holds."""

    JSON = "JSON"  # one object
    AVRO = "Avro"  # one record, in Avro's binary encoding


class Framing(StrEnum):
    """What comes before the message's value."""

    NONE = "None"
    SCHEMA_REGISTRY = "SchemaRegistry"  # a zero byte and the id of the schema, in four bytes


class UnknownFields(StrEnum):
    """What happens to a message with a field that the table does not have."""

    REFUSE = "Refuse"  # by spec.schemaEvolution, as for files
    IGNORE = "Ignore"  # the field is left out


class StartingOffsets(StrEnum):
    """Where the first epoch begins."""

    EARLIEST = "Earliest"
    LATEST = "Latest"


class LostOffsets(StrEnum):
    """What happens when offsets have expired in Kafka before they were read."""

    STOP = "Stop"  # nothing is read until a person decides
    SKIP = "Skip"  # reading goes on behind them, and the status counts them


class EpochSpec(Spec):
    # An epoch ends when one of these is reached.
    max_seconds: int = 60  # from its first message
    max_bytes: Bytes = 64 * 1024 * 1024  # of keys and values


class KafkaSource(Spec):
    cluster: str  # name of a cluster of the chart's value inlet.clusters
    topics: tuple[str, ...]
    format: MessageFormat
    framing: Framing = Framing.NONE
    avro_schema: str = Field(default="", alias="schema")  # JSON, of Avro messages without framing
    unknown_fields: UnknownFields = UnknownFields.REFUSE
    starting_offsets: StartingOffsets = StartingOffsets.EARLIEST
    lost_offsets: LostOffsets = LostOffsets.STOP
    epoch: EpochSpec = EpochSpec()
    suspend: bool = False  # read nothing


class SourceSpec(Spec):
    kafka: KafkaSource | None = None
