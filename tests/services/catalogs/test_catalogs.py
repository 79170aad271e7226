"""One configuration file describes a catalog for PyIceberg and for Spark."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from lethe.base.errors import InputError, TransientError
from lethe.iceberg.catalogs import (
    every,
    is_local,
    load,
    opened,
    properties,
    require_history,
    require_service,
    spark_properties,
)
from pyiceberg.exceptions import NoSuchTableError

from tests.support.servers.faulty_proxy import before

RESOLVING = "org.apache.iceberg.io.ResolvingFileIO"
PREFIX = "spark.sql.catalog.main"


def spark(**given: str) -> dict[str, str]:
    """The settings below the catalog's name."""
    found = spark_properties("main", {k.replace("__", ".").replace("_", "-"): v for k, v in given.items()})
    assert found[PREFIX] == "org.apache.iceberg.spark.SparkCatalog"
    return {k.removeprefix(f"{PREFIX}."): v for k, v in found.items() if k != PREFIX}


@pytest.mark.parametrize(
    ("uri", "jdbc"),
    [
        ("sqlite:////data/cat.db", {"uri": "jdbc:sqlite:/data/cat.db"}),
        ("sqlite:///cat.db", {"uri": "jdbc:sqlite:cat.db"}),
        (
            "postgresql+psycopg2://lethe:p%40ss@db.air:5432/ice?sslmode=require",
            {
                "uri": "jdbc:postgresql://db.air:5432/ice?sslmode=require",
                "jdbc.user": "lethe",
                "jdbc.password": "p@ss",
            },
        ),
        ("postgresql://db/ice", {"uri": "jdbc:postgresql://db/ice"}),
        ("postgresql://[::1]:5432/ice", {"uri": "jdbc:postgresql://[::1]:5432/ice"}),
    ],
)
def test_a_sql_catalog_is_a_jdbc_catalog_with_its_credentials_outside_the_uri(uri: str, jdbc: dict[str, str]) -> None:
    """A password in a URI ends up in logs and error messages."""
    assert spark(type="sql", uri=uri, warehouse="s3://lake/wh") == {
        "type": "jdbc",
        "jdbc.schema-version": "V1",
        "cache-enabled": "false",
        "warehouse": "s3://lake/wh",
        **jdbc,
    }


def test_s3_properties_are_translated_to_icebergs_file_io() -> None:
    found = spark(
        type="sql", uri="sqlite:////c.db", s3__endpoint="http://s3:9000", s3__region="eu-1", s3__access_key_id="k"
    )

    assert {k: v for k, v in found.items() if k.startswith(("s3", "io", "client"))} == {
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "s3.endpoint": "http://s3:9000",
        "s3.access-key-id": "k",
        "client.region": "eu-1",
    }


def test_files_in_other_stores_have_the_file_io_of_their_scheme() -> None:
    """S3, too, if the catalog has properties of two stores."""
    keys = {"adls.account-name": "a", "adls.account-key": "k", "gcs.project-id": "p", "s3.region": "eu-1"}

    found = spark(type="sql", uri="sqlite:////c.db", warehouse="file:///wh", **keys)

    assert {k: v for k, v in found.items() if k.startswith(("adls", "gcs", "s3", "io", "client"))} == {
        "io-impl": RESOLVING,
        "adls.auth.shared-key.account.name": "a",
        "adls.auth.shared-key.account.key": "k",
        "gcs.project-id": "p",
        "client.region": "eu-1",
    }


@pytest.mark.parametrize(
    ("warehouse", "io"),
    [("gs://lake/wh", RESOLVING), ("abfss://c@a/wh", RESOLVING), ("file:///wh", None), ("wh", None)],
)
def test_a_warehouse_says_its_store_if_no_property_does(warehouse: str, io: str | None) -> None:
    """Without properties, the identity of the pod has the credentials."""
    assert spark(type="rest", uri="http://c", warehouse=warehouse).get("io-impl") == io


def test_a_property_for_spark_wins_there() -> None:
    found = spark_properties("main", {"type": "sql", "uri": "sqlite:////c.db", "spark.warehouse": "file:///w"})

    assert found[f"{PREFIX}.warehouse"] == "file:///w"


@pytest.mark.parametrize("kind", ["rest", "glue"])
def test_other_catalogs_keep_their_type_and_uri(kind: str) -> None:
    assert spark(type=kind, uri="http://c", credential="a:b").items() >= {"type": kind, "uri": "http://c"}.items()


def test_a_signed_rest_catalog_has_a_signer_in_spark_as_well() -> None:
    own = {"client.access-key-id": "AKIA", "client.region": "eu-west-1"}

    assert (
        spark(type="rest", uri="http://c", **{"rest.sigv4-enabled": "true"}, **own).items()
        >= {
            "rest.sigv4-enabled": "true",
            "rest.access-key-id": "AKIA",
            "client.region": "eu-west-1",
        }.items()
    )
    assert "rest.access-key-id" not in spark(type="rest", uri="http://c", **own)


def test_glue_in_spark_has_no_credentials_of_its_own() -> None:
    own = {
        "glue.region": "eu-west-1",
        "glue.id": "111122223333",
        "glue.access-key-id": "AKIA",
        "glue.endpoint": "http://g",
    }

    found = spark(type="glue", **own)

    assert (
        found.items() >= {"glue.id": "111122223333", "client.region": "eu-west-1", "glue.endpoint": "http://g"}.items()
    )
    assert "AKIA" not in found.values()


def test_spark_asks_a_rest_catalog_for_vended_credentials_as_pyiceberg_does() -> None:
    name = "header.X-Iceberg-Access-Delegation"

    assert spark(type="rest", uri="http://c")[name] == "vended-credentials"
    assert spark(type="rest", uri="http://c", **{name: "remote-signing"})[name] == "remote-signing"
    assert name not in spark(type="glue")


def test_a_catalog_at_http_without_a_type_is_rest_as_pyiceberg_has_it() -> None:
    assert spark(uri="https://catalog")["type"] == "rest"


@pytest.mark.parametrize("given", [{"type": "dynamodb"}, {"type": "sql"}, {"type": "hadoop"}, {}])
def test_a_catalog_that_spark_cannot_have_is_refused_by_name(given: dict[str, str]) -> None:
    with pytest.raises(InputError, match="catalog 'main'") as refused:
        spark_properties("main", given)

    assert refused.value.reason == "UnsupportedCatalog"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / ".pyiceberg.yaml"
    path.write_text(
        f"catalog:\n  lite: {{type: sql, uri: 'sqlite:///{tmp_path}/c.db', s3.path-style-access: true, port: 5}}\n  b: {{}}\n"
    )
    return path


def test_properties_are_texts_as_pyiceberg_writes_them(file: Path) -> None:
    assert properties("lite", file).items() >= {"type": "sql", "s3.path-style-access": "true", "port": "5"}.items()


def test_an_unknown_catalog_is_refused_with_the_known_ones(file: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no catalog 'main'.* it contains: b, lite") as refused:
        load("main", file)
    with pytest.raises(InputError, match="it contains: none"):
        load("main", tmp_path / "nothing.yaml")

    assert refused.value.reason == "UnknownCatalog"


@pytest.mark.parametrize(
    ("given", "kept"), [("", {"connect_timeout": "5"}), ("?connect_timeout=60", {"connect_timeout": "60"})]
)
def test_a_postgresql_that_is_gone_is_waited_for_in_seconds(tmp_path: Path, given: str, kept: dict[str, str]) -> None:
    """Its address may lead nowhere; TCP alone would try for minutes. Whoever sets limits keeps them."""
    path = tmp_path / ".pyiceberg.yaml"
    path.write_text(f"catalog:\n  main: {{type: sql, uri: 'postgresql+psycopg2://u:p%40@db:5432/lake{given}'}}\n")

    engine = load("main", path).engine  # type: ignore[attr-defined]

    assert engine.url.query == {"tcp_user_timeout": "20000", **kept}
    assert engine.url.password == "p@"


def test_a_catalog_of_type_hadoop_is_a_folder(tmp_path: Path) -> None:
    """PyIceberg has none."""
    path = tmp_path / ".pyiceberg.yaml"
    path.write_text(
        f"catalog:\n  lake: {{type: hadoop, warehouse: 'file://{tmp_path}/wh'}}\n  none: {{type: hadoop}}\n"
    )

    with pytest.raises(NoSuchTableError, match=f"no table in file://{tmp_path}/wh/air/flights"):
        load("lake", path).load_table("air.flights")
    with pytest.raises(InputError, match="catalog 'none' is of type hadoop and has no property warehouse") as refused:
        load("none", path)

    assert refused.value.reason == "UnsupportedCatalog"


def test_a_dataset_on_a_folder_catalog_is_refused_with_the_remedy() -> None:
    with pytest.raises(InputError, match=r"catalog lake is of type hadoop.*Use a catalog of type sql, rest") as refused:
        require_service("lake", {"type": "hadoop", "warehouse": "s3://lake/wh"})
    require_service("main", {"type": "sql"})

    assert refused.value.reason == "UnsupportedCatalog"


def test_all_catalogs_are_known_by_name_and_a_missing_file_names_none(tmp_path: Path) -> None:
    file = tmp_path / "catalogs.yaml"
    assert every(file) == {}

    file.write_text("catalog:\n  main:\n    type: sql\n    echo: true\n  empty:\n")

    assert every(file) == {"main": {"type": "sql", "echo": "true"}, "empty": {}}


@contextmanager
def a_rest_catalog(config: dict[str, Any]) -> Iterator[str]:
    """The URI of a server that answers what a REST catalog is asked first: its configuration."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = json.dumps(config).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


@pytest.mark.parametrize(
    "own",
    [
        {"uri": "https://s3tables.eu-west-1.amazonaws.com/iceberg", "warehouse": "lake"},
        {"uri": "https://proxy.example/iceberg", "rest.sigv4-enabled": "true", "rest.signing-name": "s3tables"},
        {"uri": "https://proxy.example", "warehouse": "arn:aws:s3tables:eu-west-1:111122223333:bucket/lake"},
        {"uri": "https://glue.eu-west-1.amazonaws.com/iceberg", "warehouse": "111122223333:s3tablescatalog/lake"},
        {"type": "glue", "glue.id": "1", "warehouse": "s3tablescatalog/lake"},
    ],
)
def test_s3_tables_are_refused_by_name_and_not_asked(own: dict[str, str]) -> None:
    """Objects there cannot be listed or deleted."""
    with pytest.raises(InputError, match=r"catalog lake is Amazon S3 Tables.*S3 bucket of your own") as refused:
        opened("lake", own)

    assert refused.value.reason == "UnsupportedCatalog"


@pytest.mark.parametrize(
    ("own", "local"),
    [
        ({"type": "sql", "uri": "sqlite:////lake/catalog.db", "warehouse": "s3://lake/"}, True),
        ({"type": "hadoop", "warehouse": "file:///lake"}, True),
        ({"type": "hadoop", "warehouse": "s3://lake/"}, False),
        ({"type": "rest", "uri": "http://127.0.0.1:8181", "warehouse": "/lake"}, True),
        ({"type": "sql", "uri": "postgresql+psycopg2://u@localhost/lake", "warehouse": "/lake"}, True),
        ({"type": "rest", "uri": "http://localhost:8181", "warehouse": "lake", "s3.endpoint": "http://store"}, False),
        ({"type": "rest", "uri": "https://catalog.example", "warehouse": "/lake"}, False),
        ({"type": "sql", "uri": "postgresql+psycopg2://u@db.example/lake", "warehouse": "/lake"}, False),
        ({"type": "rest", "uri": "https://catalog.example"}, False),
    ],
)
def test_a_catalog_is_local_if_a_path_means_the_same_to_all_its_users(own: dict[str, str], local: bool) -> None:
    assert is_local(own) is local


@pytest.mark.parametrize("part", ["defaults", "overrides"])
def test_nessies_rest_catalog_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    """It shows one snapshot of each table. Its configuration says who it is."""
    answers: dict[str, Any] = {"defaults": {}, "overrides": {}}
    answers[part]["nessie.is-nessie-catalog"] = "true"
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    with a_rest_catalog(answers) as nessie, a_rest_catalog({"defaults": {}, "overrides": {}}) as other:
        found = {"lake": {"type": "rest", "uri": nessie}, "other": {"uri": other}, "sql": {"type": "sql"}}
        (tmp_path / ".pyiceberg.yaml").write_text(yaml.safe_dump({"catalog": found}))

        for look in (load, lambda name: require_history(name, properties(name))):
            with pytest.raises(
                InputError, match=r"catalog lake is Nessie's REST catalog.*ledger.*Use a REST"
            ) as refused:
                look("lake")
            assert refused.value.reason == "UnsupportedCatalog"
        for name in ("other", "sql"):
            require_history(name, properties(name))


@pytest.mark.parametrize("status", [302, 307])
def test_credentials_go_to_no_host_to_which_a_catalog_redirects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    heard: list[Any] = []

    def elsewhere(method: str, path: str, headers: Any, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        heard.append((method, path, dict(headers.items()), body))
        return 404, [], b'{"error": {"message": "none", "type": "NoSuchTableException", "code": 404}}'

    with before(elsewhere) as other:

        def moved(method: str, path: str, headers: Any, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:  # noqa: ARG001
            if path.partition("?")[0].endswith("/config"):
                return 200, [], b'{"defaults": {}, "overrides": {}}'
            return status, [("Location", f"{other.endpoint}{path}")], b""

        with before(moved) as proxy:
            own = {"type": "rest", "uri": proxy.endpoint, "token": "t", "header.X-Key": "secret"}
            with pytest.raises(
                TransientError, match=rf"moved answered with a redirection \({status}\), which Lethe does"
            ):
                opened("moved", own).load_table("air.flights")

    assert heard == []
