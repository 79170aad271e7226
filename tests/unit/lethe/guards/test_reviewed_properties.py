"""Each property that PyIceberg or Iceberg's Java library reads has a decision, which the allow-list carries out."""

from collections.abc import Iterator

import pytest
from lethe.base.errors import InputError
from lethe.guards.properties import configuration, require_safe_table, vended

from tests.support.client_properties import of_pyiceberg, reviewed, unreviewed

CLIENTS = ("pyiceberg", "java")
CANARY = "http://canary.example:1"
# A configuration that names all hosts, so that a host in an answer is left out and not refused.
OWN = {
    "uri": "https://catalog.example",
    "s3.endpoint": "https://s3.example",
    "gcs.service.host": "https://gcs.example",
}
# Values of the kinds that the allowed properties have.
VALUES = ("x", "1", "true", "eu-west-1", "https://catalog.example/api")


def names_of(*decisions: str) -> Iterator[str]:
    for client in CLIENTS:
        for decision in decisions:
            yield from (_completed(name) for name in reviewed(client)[decision])


def _completed(name: str) -> str:
    """A name of which a client knows the beginning."""
    return f"{name}lake" if name.endswith(".") else name


def passes(name: str, value: str) -> bool:
    answer = {name: value}
    return bool(vended(answer, OWN, "t")) or configuration({**OWN, **answer}, OWN, "c") != OWN


def test_each_property_that_pyiceberg_reads_was_reviewed() -> None:
    assert not unreviewed("pyiceberg", of_pyiceberg())


@pytest.mark.parametrize("name", sorted(set(names_of("from-catalog"))))
def test_a_catalog_may_answer_with_what_is_listed_so_and_with_no_host(name: str) -> None:
    assert any(passes(name, value) for value in VALUES)
    if name not in ("prefix", "namespace-separator") and "token" not in name and "-key" not in name:  # of any text
        assert not passes(name, CANARY)


@pytest.mark.parametrize("name", sorted(set(names_of("of-table", "refused", "configuration"))))
def test_nothing_else_that_a_catalog_answers_passes(name: str) -> None:
    assert not any(passes(name, value) for value in (*VALUES, CANARY))


@pytest.mark.parametrize("client", CLIENTS)
def test_a_table_is_refused_for_exactly_what_a_library_would_follow(client: str) -> None:
    for decision, names in reviewed(client).items():
        for name in map(_completed, names):
            try:
                require_safe_table("main.air.t", "s3://lake/t", {name: "x"})
                refused = False
            except InputError:
                refused = True
            paths = ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path")
            assert refused is (decision == "refused" or name in paths), name  # `x` is no place in S3


def test_an_unknown_name_fails_with_what_to_do() -> None:
    known = {name for names in reviewed("java").values() for name in names}

    assert "s3.new-endpoint" in unreviewed("java", known | {"s3.new-endpoint"})
    assert "Remove" in unreviewed("java", known - {"io-impl"})
    assert not unreviewed("java", known)
