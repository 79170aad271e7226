"""What errors of librdkafka mean. Pure."""

from typing import Final

from confluent_kafka import KafkaError

# The broker does not accept these credentials, or they do not allow it.
DENIED: Final = frozenset(
    (
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    )
)
# The broker has no such topic.
NOT_FOUND: Final = frozenset((KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_EXCEPTION))
