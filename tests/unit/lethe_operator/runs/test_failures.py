"""What an error of a catalog or a store means, and that it tells no secret."""

import threading

import pytest
import requests
from lethe.base.errors import InputError, LedgerError
from lethe_operator.cluster.time_limit import Limiter, TookTooLong, scrubbed, unavailable
from pyiceberg.exceptions import RESTError
from sqlalchemy.exc import OperationalError

from tests.support.clock import wait_until

SECRETS = {
    "uri": "postgresql://lethe:hunter22@db/lake",
    "s3.access-key-id": "AKIA1234",
    "s3.secret-access-key": "s3cr3t!!",
    "warehouse": "s3://lake",
}


def reason(error: BaseException, storage: bool = False) -> tuple[str, bool]:
    found = unavailable(error, "Table x", SECRETS, storage)
    return found.reason, found.transient


def test_a_database_or_a_rest_server_is_the_catalog() -> None:
    away = OperationalError("SELECT 1", {}, Exception("connection refused"))

    for error in (away, RESTError("500"), requests.ConnectionError("no"), TookTooLong("hangs")):
        assert reason(error) == ("CatalogUnavailable", True)


def test_a_file_that_cannot_be_read_is_the_storage() -> None:
    assert reason(OSError("AWS Error NETWORK_CONNECTION")) == ("StorageUnavailable", True)
    assert reason(TookTooLong("hangs"), storage=True) == ("StorageUnavailable", True)


def test_what_the_user_has_to_change_keeps_its_reason() -> None:
    assert reason(InputError("UnknownCatalog", "no such")) == ("UnknownCatalog", False)
    assert reason(LedgerError("LedgerLost", "gone")) == ("LedgerLost", False)


def test_no_secret_is_shown() -> None:
    text = "cannot reach postgresql://lethe:hunter22@db/lake with AKIA1234 and s3cr3t!! in s3://lake"

    assert scrubbed(text, SECRETS) == "cannot reach postgresql://***@db/lake with *** and *** in s3://lake"


def test_a_call_that_hangs_is_left_alone_and_not_started_again() -> None:
    release, started = threading.Event(), []
    limiter = Limiter()

    def hang() -> str:
        started.append(1)
        release.wait(10)
        return "at last"

    with pytest.raises(TookTooLong, match="no answer within"):
        limiter.call("s3", 0.05, hang)
    with pytest.raises(TookTooLong, match="has not returned"):
        limiter.call("s3", 0.05, hang)
    assert limiter.call("another", 5, lambda: "other") == "other"
    release.set()
    wait_until(lambda: not limiter._running[""], 10)
    assert (limiter.call("s3", 5, hang), len(started)) == ("at last", 2)
