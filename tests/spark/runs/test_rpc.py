"""Spark's ports: who may talk to them, and who can listen in."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from lethe_operator.runs.pod import AUTHENTICATED
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

ANOTHER = "a7" * 32
TIMEOUT_MS = 10_000
NEEDLE = b"what-nobody-else-may-read"

# Its executor is within, and it draws the secret itself: Spark takes one from a file on Kubernetes only. Its ports are as those
# of a driver with executors.
DRIVER = """
import json, os, sys
from lethe_spark.run.launching import launch_confs
from pyspark import SparkConf, SparkContext
confs = launch_confs(json.loads(sys.argv[1]), os.environ)
context = SparkContext(conf=SparkConf().setAll(list(confs.items())))
env = context._jvm.org.apache.spark.SparkEnv.get()
told = {
    "rpc": env.rpcEnv().address().port(),
    "blocks": env.blockManager().blockManagerId().port(),
    "secret": env.securityManager().getSecretKey(),
}
print(json.dumps(told), flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True)
class Scaled:
    """A running driver: two ports, and the secret of its run."""

    rpc: int
    blocks: int
    secret: str


@pytest.fixture(scope="module")
def scaled() -> Iterator[Scaled]:
    """With the settings of a driver with executors."""
    confs = {k: v for k, v in AUTHENTICATED.items() if not k.endswith(".file")}
    confs |= {"spark.master": "local[1]", "spark.driver.memory": "512m"}
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, json.dumps(confs)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3] / "spark_apps")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield Scaled(**json.loads(process.stdout.readline()))
    finally:
        process.communicate(timeout=60)


def settings(jvm: Any, module: str) -> Any:
    """Of a Spark client, with the encryption that the driver asks for."""
    wanted = jvm.java.util.HashMap()
    for key, value in AUTHENTICATED.items():
        wanted.put(key, value)
    return jvm.org.apache.spark.network.util.TransportConf(
        module, jvm.org.apache.spark.network.util.MapConfigProvider(wanted)
    )


def send(spark: SparkSession, port: int, secret: str | None) -> str:
    """Send one message as a Spark client with this secret, or with none; what the server says to it."""
    context = spark.sparkContext
    jvm, gateway = context._jvm, context._gateway
    assert jvm is not None
    assert gateway is not None
    network = jvm.org.apache.spark.network
    conf = settings(jvm, "rpc")
    bootstraps = jvm.java.util.ArrayList()
    if secret is not None:
        holder = network.sasl.ShuffleSecretManager()
        holder.registerApp("probe", secret)
        bootstraps.add(network.crypto.AuthClientBootstrap(conf, "probe", holder))
    transport = network.TransportContext(conf, network.server.NoOpRpcHandler())
    factory = transport.createClientFactory(bootstraps)
    try:
        client = factory.createClient("127.0.0.1", port)
        client.sendRpcSync(jvm.java.nio.ByteBuffer.wrap(bytearray(NEEDLE)), TIMEOUT_MS)
    except Py4JJavaError as e:
        return str(e.java_exception.toString())
    finally:
        factory.close()
        transport.close()
    return "an answer"


@pytest.mark.parametrize("port", ["rpc", "blocks"])
def test_a_connection_without_the_secret_of_the_run_is_refused(spark: SparkSession, scaled: Scaled, port: str) -> None:
    """With the right one, the message is read and found to be nonsense: so it is the secret that makes the difference."""
    said = {
        name: send(spark, getattr(scaled, port), s)
        for name, s in (("none", None), ("another", ANOTHER), ("its", scaled.secret))
    }

    assert "Unknown challenge message" in said["none"]
    assert "Authentication failed" in said["another"]
    assert not any(word in said["its"] for word in ("challenge", "Authentication failed"))


@dataclass
class Wiretap:
    """Passes connections on to a port and keeps what is said."""

    target: int
    heard: bytearray = field(default_factory=bytearray)

    def __post_init__(self) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self.server.accept()
                far = socket.create_connection(("127.0.0.1", self.target))
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self.heard += data
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)


def test_a_listener_on_the_network_reads_nothing(spark: SparkSession, scaled: Scaled) -> None:
    for secret, is_read in ((None, True), (scaled.secret, False)):
        tap = Wiretap(scaled.rpc)

        send(spark, tap.port, secret)

        assert (NEEDLE in tap.heard) is is_read
        tap.server.close()


def test_a_driver_without_executors_listens_on_the_loopback_only_and_asks_for_a_secret_there(
    spark: SparkSession,
) -> None:
    """Its ports are of no use to another pod, nor to another user of the machine."""
    context = spark.sparkContext
    assert context._jvm is not None
    env = context._jvm.org.apache.spark.SparkEnv.get()
    ports = (env.rpcEnv().address().port(), env.blockManager().blockManagerId().port())

    pid = int(context._jvm.java.lang.ProcessHandle.current().pid())
    found = listening(pid)

    assert set(ports) <= {port for _, port in found}
    assert {address for address, _ in found} <= {"127.0.0.1"}
    for port in ports:
        assert "Expected SaslMessage" in send(spark, port, None) or "Unknown challenge" in send(spark, port, None)


def listening(pid: int) -> set[tuple[str, int]]:
    """The addresses and ports on which a process waits for connections."""
    folder = Path("/proc", str(pid), "fd")
    inodes = set()
    for descriptor in folder.iterdir():
        with suppress(FileNotFoundError):  # closed since
            inodes.add(os.readlink(descriptor).removeprefix("socket:[").removesuffix("]"))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path("/proc", str(pid), "net", table).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:
                address, port = words[1].split(":")
                found.add((_address(address), int(port, 16)))
    return found


def _address(text: str) -> str:
    """As the kernel writes it: groups of four bytes, each the other way round."""
    groups = [bytes.fromhex(text[i : i + 8])[::-1] for i in range(0, len(text), 8)]
    raw = b"".join(groups)
    if len(raw) == 4:
        return socket.inet_ntop(socket.AF_INET, raw)
    mapped = raw[:12] == b"\0" * 10 + b"\xff\xff"
    return socket.inet_ntop(socket.AF_INET, raw[12:]) if mapped else socket.inet_ntop(socket.AF_INET6, raw)
