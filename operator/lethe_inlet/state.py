"""What is known of a source, as the Dataset's status shows it. Pure.

Why a source is not read now. Pure.
"""

from typing import Final

from confluent_kafka import KafkaError
from lethe.base.errors import TransientError
from lethe.base.verdict import Verdict
from lethe.contract.status import SourceStatus
from lethe_operator.brokers import DENIED, NOT_FOUND
from lethe_operator.reasons import Reason


class Trouble(TransientError):
    """Nothing is read until its cause is gone. Nothing is lost meanwhile, unless the message says so."""


def of_kafka(error: KafkaError, cluster: str, topics: str) -> Trouble:
    """What an error of librdkafka means."""
    name = f"Kafka cluster {cluster}"
    code = error.code()
    if code in DENIED:
        return Trouble(
            Reason.SOURCE_DENIED,
            f"{name} denies access to {topics} ({error.name()}). Correct the credentials in the chart's value inlet.clusters, or "
            "allow them to describe and read these topics.",
        )
    if code in NOT_FOUND:
        return Trouble(
            Reason.TOPIC_NOT_FOUND,
            f"{name} lacks one of the topics {topics} ({error.name()}). Create it, or correct spec.source.kafka.topics.",
        )
    return Trouble(
        Reason.BROKER_AWAY,
        f"{name} does not answer ({error.name()}). Reading goes on from the same offsets when it does.",
    )


def no_cluster(cluster: str) -> Trouble:
    """The error if no configured cluster has the name in spec.source.kafka.cluster."""
    return Trouble(
        Reason.CLUSTER_NOT_FOUND,
        f"There is no Kafka cluster {cluster} for this namespace. Add it to the chart's value inlet.clusters, or correct "
        "spec.source.kafka.cluster.",
    )


def outside(message: str) -> Trouble:
    """The error if the cluster is not open to a topic of the Dataset; `message` names the topic."""
    return Trouble(Reason.OUTSIDE_BOUNDARY, f"{message} Nothing is read.")


def other_cluster(cluster: str, log_uri: str) -> Trouble:
    """The error if the cluster has another id than the one in the epoch log."""
    return Trouble(
        Reason.SOURCE_REPLACED,
        f"{cluster} is another Kafka cluster than the one that was read before: offsets of one mean nothing in the other. Name "
        f"the former cluster, or use another Dataset. The epoch log is {log_uri}.",
    )


def other_topic(topic: str, log_uri: str) -> Trouble:
    """The error if a topic has another id than in the epoch log, or lacks offsets that were read before."""
    return Trouble(
        Reason.SOURCE_REPLACED,
        f"Topic {topic} was deleted and created again, or has lost messages: it is not the one that was read before. Its offsets "
        f"name batches that exist already. Use a topic of another name. The epoch log is {log_uri}.",
    )


def lost(count: int, where: str) -> Trouble:
    """The error if offsets expired in Kafka before they were read, unless spec.source.kafka.lostOffsets is Skip."""
    return Trouble(
        Reason.OFFSETS_LOST,
        f"{count} offsets have expired in Kafka before they were read ({where}). Nothing more is read. To go on behind them, set "
        "spec.source.kafka.lostOffsets: Skip.",
    )


NO_TABLE: Final = Trouble(
    Reason.TABLE_NOT_READY,
    "The table does not exist, or no run has claimed it yet. Reading begins when the Dataset is ready and has its table.",
)


STARTING: Final = SourceStatus(reason=Reason.SOURCE_STARTING, message="", rows=0, refused_messages=0, lost_offsets=0)


def failing(state: SourceStatus, verdict: Verdict) -> SourceStatus:
    """A copy with a reason and a message; the epoch, the lag and the counts stay."""
    return state.model_copy(update={"reason": str(verdict.reason), "message": verdict.message})


def reading(state: SourceStatus) -> SourceStatus:
    """A copy with the reason SourceRead and no message; the epoch, the lag and the counts stay."""
    return failing(state, Verdict(Reason.SOURCE_READ, ""))
