"""Which properties of a table, and of the answers of a REST catalog, pass to a client."""

from collections.abc import Iterator
from contextlib import nullcontext

import pytest
from lethe.base.errors import InputError
from lethe.storage.properties import configuration, require_safe_table, vended, with_vended

from tests.support.client_properties import of_pyiceberg, reviewed, unreviewed

OWN = {
    "type": "rest",
    "uri": "https://catalog.example/api",
    "token": "own",
    "s3.endpoint": "https://minio.example",
    "s3.access-key-id": "own",
    "s3.secret-access-key": "own",
    "s3.session-token": "own",
    "client.access-key-id": "signer",
}
HERE = "s3://lake/wh/t"


def refused(location: str = HERE, **properties: str) -> str:
    with pytest.raises(InputError) as e:
        require_safe_table("main.air.flights", location, properties)
    assert e.value.reason == "UnsafeProperty"
    return e.value.message


@pytest.mark.parametrize(
    "name",
    [
        "write.location-provider.impl",
        "write.py-location-provider.impl",
        "parquet.crypto.factory.class",
        "parquet.encryption.kms.client.class",
        "parquet.encryption.key.access.token",
    ],
)
def test_a_table_that_names_a_class_is_refused_by_the_name_of_the_property(name: str) -> None:
    message = refused(**{name: "sys.exit"})

    assert name in message
    assert "main.air.flights" in message
    assert "sys.exit" not in message


@pytest.mark.parametrize(
    "name", ["write.data.path", "write.object-storage.path", "write.folder-storage.path", "write.metadata.path"]
)
@pytest.mark.parametrize(
    ("location", "path"),
    [
        (HERE, "hdfs://evil.example:8020/x"),
        (HERE, "http://169.254.169.254/latest"),
        (HERE, "abfss://c@lake.dfs.core.windows.net/x"),
        ("abfss://c@lake.dfs.core.windows.net/x", "abfss://c@lake.dfs.evil.example/x"),
        ("abfss://c@lake.dfs.core.windows.net/x", "wasbs://c@evilcore.windows.net.example/x"),
    ],
)  # fmt: skip
def test_a_path_of_another_store_or_host_is_refused(location: str, path: str, name: str) -> None:
    message = refused(location, **{name: path})

    assert name in message
    assert "evil" not in message


@pytest.mark.parametrize(
    "name", ["io-impl", "py-io-impl", "s3.endpoint", "metrics-reporter-impl", "encryption.key-id", "owner"]
)
def test_a_property_that_no_library_reads_from_a_table_does_no_harm(name: str) -> None:
    require_safe_table("main.air.flights", HERE, {name: "sys.exit", "write.data.path": "s3a://sea/elsewhere"})


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("file:///lake/t", "/lake/elsewhere"),
        ("gs://lake/t", "gs://sea/t"),
        ("abfss://c@lake.dfs.core.windows.net/t", "wasbs://d@sea.blob.core.windows.net/t"),
        ("abfss://c@lake.dfs.core.chinacloudapi.cn/t", "abfss://c/t"),
    ],
)
def test_a_path_in_a_store_of_the_same_kind_is_allowed(location: str, path: str) -> None:
    require_safe_table("main.air.flights", location, {"write.data.path": path})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("s3.access-key-id", "AKIA"),
        ("s3.secret-access-key", "a/b+c="),
        ("s3.session-token", "FwoGZXIvYXdzE=="),
        ("s3.session-token-expires-at-ms", "1790000000000"),
        ("s3.region", "eu-west-1"),
        ("client.region", "auto"),
        ("s3.path-style-access", "true"),
        ("gcs.oauth2.token", "ya29.x"),
        ("gcs.oauth2.token-expires-at", "1790000000000"),
        ("adls.sas-token", "sv=1&sig=x"),
        ("adls.sas-token.lake.dfs.core.windows.net", "sv=1&sig=x"),
        ("adls.sas-token-expires-at-ms.lake", "1790000000000"),
        ("client.refresh-credentials-endpoint", "v1/namespaces/air/tables/t/credentials"),
        ("gcs.oauth2.refresh-credentials-endpoint", "v1/ns/air/tables/t/credentials"),
    ],
)
def test_credentials_that_a_catalog_vends_pass(name: str, value: str) -> None:
    assert vended({name: value}, OWN, "t") == {name: value}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("py-io-impl", "sys.exit"),
        ("lethe.vended-for", "air.secret"),
        ("s3.endpoint", "http://evil.example"),
        ("s3.region", "evil.example/#"),
        ("client.region", "x\n"),
        ("s3.proxy-uri", "http://evil.example"),
        ("s3.role-arn", "arn:aws:iam::1:role/other"),
        ("s3.path-style-access", "sys.exit"),
        ("s3.access-key-id", "x\r\nHost: evil"),
        ("adls.sas-token.lake.dfs.evil.example", "x"),
        ("adls.sas-token.evil/x", "x"),
        ("adls.connection-string", "BlobEndpoint=http://evil"),
        ("client.refresh-credentials-endpoint", "https://evil.example/c"),
        ("client.refresh-credentials-endpoint", "HTTPS:evil.example/c"),
        ("client.factory", "evil.Factory"),
        ("S3.ACCESS-KEY-ID", "x"),
    ],
)
def test_anything_else_is_left_out(name: str, value: str) -> None:
    assert vended({name: value}, OWN, "t") == {}


@pytest.mark.parametrize("name", ["s3.endpoint", "gcs.service.host"])
def test_a_host_that_no_configuration_names_is_refused_and_not_replaced_by_the_stores_own(name: str) -> None:
    with pytest.raises(InputError, match=f"UnsafeProperty: table air.t.*{name}") as e:
        vended({name: "http://evil.example"}, {}, "table air.t")

    assert "evil" not in e.value.message


@pytest.mark.parametrize(
    ("endpoint", "is_amazons"),
    [
        ("https://s3.amazonaws.com", True),
        ("https://s3.eu-west-1.amazonaws.com/", True),
        ("https://s3-us-west-2.amazonaws.com", True),
        ("https://s3.evil.example/.amazonaws.com", False),
        ("http://s3.amazonaws.com", False),
        ("https://s3.x.y.amazonaws.com", False),
    ],
)
def test_only_the_host_that_a_client_asks_anyway_is_no_reason_to_refuse(endpoint: str, is_amazons: bool) -> None:
    with nullcontext() if is_amazons else pytest.raises(InputError, match="UnsafeProperty"):
        assert vended({"s3.endpoint": endpoint}, {}, "t") == {}


def test_vended_credentials_replace_all_that_the_configuration_has_for_the_store() -> None:
    found = with_vended(OWN, {"s3.access-key-id": "vended", "s3.secret-access-key": "vended"})

    assert found == {
        "type": "rest",
        "uri": "https://catalog.example/api",
        "token": "own",
        "s3.endpoint": "https://minio.example",
        "s3.access-key-id": "vended",
        "s3.secret-access-key": "vended",
    }


def test_a_catalog_says_how_its_api_is_called_and_nothing_else() -> None:
    answered = {
        **OWN,
        "prefix": "lake/main",
        "namespace-separator": ".",
        "rest-page-size": "100",
        "nessie.is-nessie-catalog": "true",
        "token": "evil",
        "auth": {"type": "custom", "impl": "os.abort"},
        "rest.sigv4-enabled": "true",
        "oauth2-server-uri": "http://evil.example",
        "header.Host": "evil.example",
        "py-io-impl": "sys.exit",
        "scan-planning-mode": "server",
        "snapshot-loading-mode": "refs",
        "type": "sql",
        "warehouse": "file:///etc",
    }

    assert configuration(answered, OWN, "the catalog main") == {
        **OWN,
        "prefix": "lake/main",
        "namespace-separator": ".",
        "rest-page-size": "100",
        "nessie.is-nessie-catalog": "true",
    }


@pytest.mark.parametrize(
    ("uri", "passes"),
    [
        ("https://catalog.example/other", True),
        ("https://catalog.example:443/api/", True),
        ("http://catalog.example/api", False),
        ("https://catalog.example:444/api", False),
        ("https://catalog.example@evil.example/api", False),
        ("https://evil.example/api", False),
        ("https://catalog.example:port/api", False),
    ],
)
def test_a_catalog_may_move_its_api_on_its_own_host_only(uri: str, passes: bool) -> None:
    assert (configuration({**OWN, "uri": uri}, OWN, "c")["uri"] == uri) is passes


CLIENTS = ("pyiceberg", "java")
CANARY = "http://canary.example:1"
# A configuration that names all hosts, so that a host in an answer is left out and not refused.
ALL_HOSTS = {
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
    return bool(vended(answer, ALL_HOSTS, "t")) or configuration({**ALL_HOSTS, **answer}, ALL_HOSTS, "c") != ALL_HOSTS


def test_each_property_that_pyiceberg_reads_was_reviewed() -> None:
    assert not unreviewed("pyiceberg", of_pyiceberg())


def test_a_catalog_may_answer_with_what_is_listed_so_and_with_no_host() -> None:
    names = set(names_of("from-catalog"))
    of_any_text = {n for n in names if n in ("prefix", "namespace-separator") or "token" in n or "-key" in n}

    assert {n for n in names if not any(passes(n, value) for value in VALUES)} == set()
    assert {n for n in names - of_any_text if passes(n, CANARY)} == set()


def test_nothing_else_that_a_catalog_answers_passes() -> None:
    others = set(names_of("of-table", "refused", "configuration"))

    assert {n for n in others if any(passes(n, value) for value in (*VALUES, CANARY))} == set()


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
