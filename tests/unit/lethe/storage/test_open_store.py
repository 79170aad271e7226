"""Stores of one service share their connections, and nothing else does."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest
from lethe.storage import object_store
from lethe.storage.object_store import open_store

PROPERTIES = {"s3.endpoint": "http://127.0.0.1:9", "s3.access-key-id": "a", "s3.secret-access-key": "b"}


def test_a_store_is_opened_once_for_the_same_service_and_credentials() -> None:
    assert open_store("s3://lake/a", PROPERTIES) is open_store("s3a://sea/b", dict(PROPERTIES))


@pytest.mark.parametrize("changed", [{"s3.access-key-id": "other"}, {"s3.endpoint": "http://127.0.0.1:8"}])
def test_other_credentials_and_other_servers_have_their_own_store(changed: dict[str, str]) -> None:
    assert open_store("s3://lake", PROPERTIES) is not open_store("s3://lake", PROPERTIES | changed)


def test_a_change_of_the_properties_by_the_caller_does_not_reach_the_store() -> None:
    mine = dict(PROPERTIES)
    store = open_store("s3://lake", mine)
    mine["s3.access-key-id"] = "other"

    assert open_store("s3://lake", mine) is not store
    assert open_store("s3://lake", PROPERTIES) is store


def test_another_environment_has_its_own_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without credentials in the properties, clients take those of the environment."""
    before = open_store("s3://lake", {})
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "other")

    assert open_store("s3://lake", {}) is not before


def test_a_store_is_replaced_after_some_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials outside of the properties and the environment may have changed."""
    now = [0.0]
    monkeypatch.setattr(object_store.time, "monotonic", lambda: now[0])
    stores = object_store._RemoteStores()
    backend = object_store.Backend.S3
    first = stores.get(backend, PROPERTIES)

    now[0] = object_store.STORE_KEPT_SECONDS - 1
    assert stores.get(backend, PROPERTIES) is first
    now[0] = object_store.STORE_KEPT_SECONDS
    assert stores.get(backend, PROPERTIES) is not first


def test_the_number_of_stores_is_limited() -> None:
    stores = object_store._RemoteStores()
    for n in range(3 * object_store.STORES_KEPT_AT_MOST):
        stores.get(object_store.Backend.S3, {**PROPERTIES, "s3.access-key-id": str(n)})

    assert len(stores._kept) <= object_store.STORES_KEPT_AT_MOST


def _its_own(_: int) -> int:
    return id(open_store("s3://lake", PROPERTIES))


def test_a_forked_process_has_its_own_store() -> None:
    mine = id(open_store("s3://lake", PROPERTIES))
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        assert pool.submit(_its_own, 0).result(30) != mine
