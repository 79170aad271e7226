"""A broker of Kafka's own (KRaft mode, one process), and what a consumer reads from it."""

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from tests.support.servers import process as servers
from tests.support.servers.postgres import free_port

# What the server needs beside its own jars, out of those that PySpark brings along.
OF_PYSPARK = (
    "scala-library-",
    "scala-reflect-",
    "snappy-java-",
    "zstd-jni-",
    "slf4j-api-",
    "log4j-slf4j2-impl-",
    "log4j-api-",
    "log4j-core-",
    "jackson-annotations-",
    "jackson-core-2",
    "jackson-databind-",
    "jackson-dataformat-yaml-",
    "snakeyaml-2",
)
CLUSTER = "MkU3OEVBNTcwNTJENDM2Qk"
SECONDS = 30
HEAP = "-Xmx320m"
USER, PASSWORD = "lethe", "correct-horse"


@dataclass(frozen=True)
class Broker:
    port: int
    sasl_port: int  # for which USER and PASSWORD are needed
    folder: Path
    _stack: ExitStack = field(default_factory=ExitStack)

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.servers, "log_level": 0})

    @contextmanager
    def away(self) -> Iterator[None]:
        """The server is stopped for as long as the block lasts, and goes on with the topics that it had."""
        self.stop()
        try:
            yield
        finally:
            self.start()

    def start(self) -> None:
        command = [*_java(self.folder), "kafka.Kafka", str(self.folder / "server.properties")]
        self._stack.enter_context(servers.running("Kafka", command, self.folder, self.ask))

    def stop(self) -> None:
        self._stack.close()

    def ask(self) -> None:
        try:
            self.admin.list_topics(timeout=5)
        except KafkaException as e:
            raise ConnectionError(str(e)) from e

    def create_topic(self, name: str, partitions: int = 3, **config: str) -> None:
        """Args:
        config: Of the topic, with `_` for dots and `-`: `max_message_bytes`.
        """
        wanted = {k.replace("_", "."): v for k, v in config.items()}
        admin = self.admin  # as long as it is referred to, it waits for the answer
        admin.create_topics([NewTopic(name, partitions, 1, config=wanted)])[name].result(SECONDS)

    def configure_topic(self, name: str, **config: str) -> None:
        wanted = {k.replace("_", "."): v for k, v in config.items()}
        entries = [ConfigEntry(k, v, incremental_operation=AlterConfigOpType.SET) for k, v in wanted.items()]
        resource = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=entries)
        admin = self.admin
        admin.incremental_alter_configs([resource])[resource].result(SECONDS)

    def read(self, topic: str) -> list["Record"]:
        """All records of a topic, those of each partition in order."""
        consumer = Consumer(
            {"bootstrap.servers": self.servers, "group.id": "reader", "enable.auto.commit": False, "log_level": 0}
        )
        found: list[Record] = []
        try:
            for partition in consumer.list_topics(topic, timeout=SECONDS).topics[topic].partitions:
                low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=SECONDS)
                consumer.assign([TopicPartition(topic, partition, low)])
                while low < high:
                    message = consumer.poll(SECONDS)
                    assert message is not None, f"{topic}/{partition}: nothing at {low} of {high}"
                    assert message.error() is None, message.error()
                    headers = dict(message.headers() or [])
                    found.append(Record(partition, (message.key() or b"").decode(), message.value(), headers))
                    low = message.offset() + 1
        finally:
            consumer.close()
        return found


@dataclass(frozen=True)
class Record:
    partition: int
    key: str
    value: bytes
    headers: Mapping[str, bytes]


@contextmanager
def running(folder: Path) -> Iterator[Broker]:
    """A broker for as long as the block lasts."""
    folder.mkdir(parents=True, exist_ok=True)
    broker = Broker(free_port(), free_port(), folder)
    config = folder / "server.properties"
    config.write_text("\n".join(f"{k}={v}" for k, v in _properties(broker, free_port()).items()))
    (folder / "log4j2.properties").write_text(
        "rootLogger.level=WARN\nappender.c.type=Console\nappender.c.name=c\n"
        "appender.c.layout.type=PatternLayout\nrootLogger.appenderRef.c.ref=c\n"
    )
    subprocess.run([*_java(folder), "kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(config)],
                   check=True, cwd=folder, capture_output=True, timeout=120)  # fmt: skip
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


def _java(folder: Path) -> list[str]:
    log = f"-Dlog4j2.configurationFile={folder}/log4j2.properties"
    return ["java", HEAP, *servers.SHORT_LIVED, log, "-cp", servers.class_path("kafka", *OF_PYSPARK)]


def _properties(broker: Broker, controller: int) -> dict[str, Any]:
    port, sasl_port = broker.port, broker.sasl_port
    return {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{sasl_port},"
        f"CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{sasl_port}",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule "
        f'required user_{USER}="{PASSWORD}";',
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "log.dirs": broker.folder / "data",
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "auto.create.topics.enable": "false",
        "num.network.threads": 2,
        "num.io.threads": 2,
        "log.cleaner.enable": "false",
    }
