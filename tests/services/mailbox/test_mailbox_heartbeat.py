"""A Lease is renewed for as long as the process can do its work, and no longer."""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic

import pytest
from lethe.kube import LEASES
from lethe_spark.committer.reports import (
    HUNG_SECONDS,
    JVM_LIMIT_SECONDS,
    WATCH_LIMIT_SECONDS,
    CommitterHealth,
    Heartbeat,
    renewal,
)

from tests.support import api_server
from tests.support.api_server import NAMESPACE, ApiServer

NAME = "lethe-committer"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    with api_server.running(tmp_path) as running:
        yield running


def test_a_process_is_healthy_while_its_watch_and_its_jvm_respond() -> None:
    assert CommitterHealth().trouble(0) != ""
    assert CommitterHealth(mailbox_time=0, jvm_time=0).trouble(JVM_LIMIT_SECONDS) == ""
    assert (
        CommitterHealth(mailbox_time=0, jvm_time=100).trouble(WATCH_LIMIT_SECONDS + 1)
        == "the mailbox cannot be watched"
    )
    assert CommitterHealth(mailbox_time=100, jvm_time=0).trouble(JVM_LIMIT_SECONDS + 1) == "the JVM does not answer"


def test_a_jvm_that_never_answers_again_is_hung() -> None:
    assert not CommitterHealth(jvm_time=0).is_hung(HUNG_SECONDS)
    assert CommitterHealth(jvm_time=0).is_hung(HUNG_SECONDS + 1)
    assert not CommitterHealth().is_hung(HUNG_SECONDS + 1)


def test_a_renewal_has_the_times_that_kubernetes_reads() -> None:
    assert renewal("pod-1", datetime(2026, 3, 1, 12, 0, 1, 20, UTC)) == {
        "holderIdentity": "pod-1",
        "leaseDurationSeconds": 30,
        "renewTime": "2026-03-01T12:00:01.000020Z",
    }


def test_the_lease_is_renewed_again_and_again_until_the_jvm_stops_answering(server: ApiServer) -> None:
    server.create(NAME, LEASES)
    jvm_answers = threading.Event()
    jvm_answers.set()
    health, hung = CommitterHealth(mailbox_time=monotonic()), threading.Event()
    heart = Heartbeat(server.api, NAME, "pod-1", health, jvm_answers.is_set, hung.set, renew_seconds=0.2)
    times: list[str] = []

    heart.start()
    try:
        for _ in range(3):
            server.wait_for(lambda: server.lease(NAME).get("renewTime", "") not in ["", *times], 20, "a renewal")
            times.append(server.lease(NAME)["renewTime"])
        assert times == sorted(times)
        assert not hung.is_set()

        jvm_answers.clear()
        health.jvm_time = monotonic() - HUNG_SECONDS - 1

        assert hung.wait(20)
    finally:
        heart.stopped.set()


def test_a_lease_that_is_not_there_does_not_stop_the_process(
    server: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    health = CommitterHealth(mailbox_time=monotonic(), jvm_time=monotonic())
    heart = Heartbeat(server.api, NAME, "pod-1", health, lambda: True, lambda: None, renew_seconds=0.2)

    heart.start()
    try:
        server.wait_for(lambda: ("PATCH", LEASES.path(NAMESPACE, NAME)) in server.requests, 20)
        server.create(NAME, LEASES)
        server.wait_for(lambda: server.lease(NAME).get("holderIdentity") == "pod-1", 20)
    finally:
        heart.stopped.set()

    assert "404" in caplog.text
