"""The operator's decision about a buffer that is not the Dataset's to touch, on real tables, files and claims: the Dataset is
Stalled, no run starts, and not a file is moved, deleted or quoted."""

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from lethe.base import names
from lethe.guards.claim import Owner
from lethe.ingest.shared_folders import take_claim
from lethe.kube import DATASETS, JOBS
from lethe_operator.cluster.queue import Key
from lethe_operator.settings import Settings

from tests.support.resources import a_world
from tests.support.small_lake import FLIGHTS, SmallLake, claimed_table, eager_dataset, put_batches
from tests.support.tables import new_table, rows

SECRET = "eyJhbGciOiJSUzI1NiJ9"


@pytest.fixture
def lake(lake: SmallLake) -> SmallLake:
    """The table air.victim, with a row, has no Dataset; air.flights is the Dataset's table, with an empty buffer."""
    new_table(lake.catalog, "air.victim").append(rows("A"))
    (lake.home / "buffer").mkdir()
    return lake


def contents(folder: Path) -> dict[str, str]:
    files = (p for p in folder.rglob("*") if p.is_file() and ".db" not in p.name)
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def judged(lake: SmallLake, uri: str, **buffer: Any) -> tuple[str, str]:
    """Reason and message of the condition Stalled of a Dataset with that buffer, "" if it is not; nothing may have changed."""
    before = contents(lake.home)
    lake.cluster.patch(DATASETS, "ns", "flights", {"spec": {"buffer": {"uri": uri, **buffer}}})
    lake.operator()(FLIGHTS)
    lake.operator()(FLIGHTS)
    stalled = stalled_of(lake)
    assert before == contents(lake.home)
    assert not stalled[0] or not lake.jobs()
    return stalled


def stalled_of(lake: SmallLake, name: str = "flights", namespace: str = "ns") -> tuple[str, str]:
    conditions = lake.cluster.get(DATASETS, namespace, name)["status"]["conditions"]
    (found,) = [c for c in conditions if c["type"] == "Stalled"]
    return (found["reason"], found["message"]) if found["status"] == "True" else ("", "")


@pytest.mark.parametrize(
    "place",
    [
        "file://{home}/wh/air/victim",
        "file://{home}/wh/air/victim/",
        "file://{home}/wh/air/victim/metadata",
        "file://{home}/wh/air/victim/data",
        "file://{home}/wh/air/victim/data/deeper/still",
        "file://{home}/wh/air",
        "file://{home}/wh",
        "file:{home}/wh",
        "file://{home}",
        "file://{home}/buffer/../wh/air/victim/metadata",
        "file://{home}//wh///air/victim//metadata/",
        "file://{home}/wh%2Fair/victim/metadata",
        "file://{home}/buffer/%2e%2e/wh/air/victim",
        "file://localhost{home}/wh/air/victim/metadata",
    ],
)
@pytest.mark.parametrize("layout", ["File", "Directory"])
def test_a_buffer_at_above_or_inside_a_table_is_rejected_whatever_its_spelling(
    lake: SmallLake, place: str, layout: str
) -> None:
    reason, message = judged(lake, place.format(home=lake.home), layout=layout, format="avro")

    assert reason == "BufferHoldsTable"
    assert "spec.buffer.uri" in message


@pytest.mark.parametrize("below", ["metadata", "data"])
def test_a_symbolic_link_to_a_table_is_followed(lake: SmallLake, tmp_path: Path, below: str) -> None:
    (tmp_path / "linked").symlink_to(tmp_path / "wh/air/victim" / below)

    reason, message = judged(lake, f"file://{tmp_path}/linked", layout="Directory", format="avro")

    assert reason == "BufferHoldsTable"
    assert f"{tmp_path}/wh/air/victim" in message or below == "metadata"


def test_a_table_below_the_buffer_is_found_by_its_files(lake: SmallLake, tmp_path: Path) -> None:
    """The catalog does not know the table: it is a copy, or belongs to a catalog that the operator does not know."""
    put_batches(tmp_path / "buffer", "B")
    (tmp_path / "wh/air/victim").rename(tmp_path / "buffer/batch_id=C")

    reason, message = judged(lake, f"file://{tmp_path}/buffer")

    assert (reason, "batch_id=C" in message) == ("BufferHoldsTable", True)


def test_data_files_of_a_table_are_no_batches(lake: SmallLake, tmp_path: Path) -> None:
    """Where `write.data.path` leads elsewhere, nothing but the names of the files tells."""
    (tmp_path / "wh/air/victim/data").rename(tmp_path / "moved")

    assert judged(lake, f"file://{tmp_path}/moved", layout="File")[0] == "BufferHoldsTable"


def test_objects_that_are_no_batches_are_counted_and_named_and_may_be_adopted(lake: SmallLake, tmp_path: Path) -> None:
    put_batches(tmp_path / "buffer", "B")
    (tmp_path / "buffer/notes.txt").write_text(SECRET)
    (tmp_path / "buffer/year=2026").mkdir()
    (tmp_path / "buffer/year=2026/a.parquet").write_text(SECRET)

    reason, message = judged(lake, f"file://{tmp_path}/buffer")

    assert reason == "BufferHoldsOtherObjects"
    assert "2 folders or files" in message
    assert "notes.txt" in message
    assert SECRET not in message
    assert judged(lake, f"file://{tmp_path}/buffer", adopt=True) == ("", "")
    assert lake.jobs()


def test_a_local_buffer_needs_a_local_catalog(lake: SmallLake, tmp_path: Path) -> None:
    """Nothing in the folder is listed, and none of it is named."""
    (tmp_path / "pod").mkdir()
    (tmp_path / "pod/token").write_text(SECRET)
    config = tmp_path / ".pyiceberg.yaml"
    remote = {"type": "sql", "uri": "postgresql+psycopg2://u:p@127.0.0.1:1/db", "warehouse": "s3://lake/wh"}
    config.write_text(f"catalog: {{lite: {remote}}}")
    lake.cluster.patch(DATASETS, "ns", "flights", {"spec": {"buffer": {"uri": f"file://{tmp_path}/pod"}}})
    operator = lake.operator()
    view = a_world().table
    operator.tables.view = lambda *_, **__: view  # type: ignore[method-assign]

    operator(FLIGHTS)

    reason, message = stalled_of(lake)
    assert reason == "BufferLocal"
    assert "catalog lite" in message
    assert "token" not in str(lake.cluster.objects)


@pytest.mark.parametrize("namespace", ["ns", "other"])
@pytest.mark.parametrize("suffix", ["", "/", "//x", "/../buffer", "/%2e/"])
def test_the_buffer_of_an_older_dataset_is_rejected_in_whatever_namespace(
    lake: SmallLake, tmp_path: Path, namespace: str, suffix: str
) -> None:
    older = eager_dataset("older", f"file://{tmp_path}/buffer")
    older["metadata"] |= {"namespace": namespace, "creationTimestamp": "2020-01-01T00:00:00+00:00"}
    lake.cluster.create(DATASETS, namespace, older)
    operator = lake.operator()
    object.__setattr__(operator, "settings", Settings(watch_namespaces=("ns", "other")))
    lake.cluster.patch(DATASETS, "ns", "flights", {"spec": {"buffer": {"uri": f"file://{tmp_path}/buffer{suffix}"}}})

    operator(FLIGHTS)

    reason, message = stalled_of(lake)
    assert reason == "BufferShared"
    assert ("other/older" if namespace == "other" else "older") in message


def test_the_claim_of_another_dataset_is_respected_and_named(lake: SmallLake, tmp_path: Path) -> None:
    """Of a namespace, a release or a cluster that this operator sees nothing of."""
    put_batches(tmp_path / "buffer", "B")
    uri = f"file://{tmp_path}/buffer"
    take_claim(uri, {}, Owner("far", "away", "uid-away", "uuid-away", "cluster-2"), "Directory")

    reason, message = judged(lake, uri)

    assert reason == "BufferClaimed"
    assert "far/away" in message
    assert f"{uri}/{names.CLAIM_FILE}" in message


def test_a_claim_that_cannot_be_read_is_somebodys_and_is_not_quoted(lake: SmallLake, tmp_path: Path) -> None:
    (tmp_path / "buffer" / names.CLAIM_FILE).write_text(SECRET)

    reason, message = judged(lake, f"file://{tmp_path}/buffer")

    assert (reason, SECRET in message) == ("BufferClaimed", False)


def test_retention_claims_a_buffer_of_an_earlier_version_and_deletes_only_what_was_promoted(
    lake: SmallLake, tmp_path: Path
) -> None:
    put_batches(tmp_path / "buffer", "A", "B")
    (tmp_path / "buffer/_refused/batch_id=X/0123").mkdir(parents=True)
    (tmp_path / "buffer/_refused/batch_id=X/0123/p.parquet").write_text("rows")
    lake.commit(lake.promoted("A"))

    lake.operator()(FLIGHTS)

    left = sorted(
        p.relative_to(tmp_path / "buffer").as_posix() for p in (tmp_path / "buffer").rglob("*") if p.is_file()
    )
    assert left == [
        names.CLAIM_FILE,
        "_refused/batch_id=X/0123/p.parquet",
        "batch_id=B/_SUCCESS",
        "batch_id=B/p.parquet",
    ]


def test_retention_deletes_nothing_from_a_buffer_that_was_claimed_since_it_was_listed(
    lake: SmallLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim is read again right before the deletion."""
    put_batches(tmp_path / "buffer", "A")
    lake.commit(lake.promoted("A"))
    operator, uri = lake.operator(), f"file://{tmp_path}/buffer"
    from lethe_operator.dataset import listing

    before = listing._claim_of

    def overtaken(*args: Any) -> Any:
        seen = before(*args)
        take_claim(uri, {}, Owner("far", "away", "uid-away", "uuid-away"), "Directory")
        return seen

    monkeypatch.setattr(listing, "_claim_of", overtaken)
    operator(FLIGHTS)

    assert (tmp_path / "buffer/batch_id=A/p.parquet").exists()


@pytest.mark.parametrize("how", ["location", "property", "rename"])
def test_a_table_in_the_folder_of_an_older_datasets_table_stops_the_younger_dataset(
    lake: SmallLake, tmp_path: Path, how: str
) -> None:
    older = eager_dataset("older", f"file://{tmp_path}/buffer2")
    older["metadata"] |= {"creationTimestamp": "2020-01-01T00:00:00+00:00"}
    lake.cluster.create(DATASETS, "ns", older)
    if how == "rename":  # the old name is free then, and the catalog gives the next table of that name the same folder
        lake.catalog.drop_table("air.flights")
        new_table(lake.catalog, "air.flights", **{names.CLAIM: "ns/older"})
        lake.catalog.rename_table("air.flights", "air.older")
    else:
        claimed_table(lake.catalog, "older")
        lake.catalog.drop_table("air.flights")
    lake.operator()(Key("Dataset", "ns", "older"))
    inside = lake.catalog.load_table("air.older").location()
    claim = {names.CLAIM: "ns/flights", "format-version": "2", "write.metadata.metrics.column.batch_id": "full"}
    schema = lake.catalog.load_table("air.older").schema().as_arrow()
    if how == "location":
        lake.catalog.create_table("air.flights", schema, location=inside, properties=claim)
    elif how == "property":
        lake.catalog.create_table("air.flights", schema, properties={**claim, "write.data.path": f"{inside}/data"})
    else:
        lake.catalog.create_table("air.flights", schema, properties=claim)

    lake.operator()(FLIGHTS)

    reason, message = stalled_of(lake)
    assert reason == "TableInOtherTable"
    assert "ns/older" in message
    assert stalled_of(lake, "older") == ("", "")


def test_a_buffer_beside_the_warehouse_is_accepted(lake: SmallLake, tmp_path: Path) -> None:
    put_batches(tmp_path / "buffer", "B")

    assert judged(lake, f"file://{tmp_path}/buffer") == ("", "")
    assert lake.cluster.list(JOBS, "ns")
    assert os.listdir(tmp_path / "buffer") == ["batch_id=B"]
