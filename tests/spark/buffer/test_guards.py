"""A run does not trust the operator: told to consolidate a buffer that is not its Dataset's, it stops before it reads, moves or
deletes anything. On local files with a real table, and on a real S3 server."""

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from lethe.base import names
from lethe.base.errors import InputError
from lethe.contract.run import BufferRef, Replacement, RunBoundary
from lethe.guards.claim import Owner
from lethe.iceberg import catalogs
from lethe.ingest.shared_folders import read_claim, take_claim
from lethe_spark.apps.app import job_of
from lethe_spark.commit.replacement_files import with_ids
from pyspark.sql import SparkSession

from tests.spark.parameters import some, tuples
from tests.spark.support.built_once import built_once
from tests.spark.support.story import Story, local, of_batches
from tests.support.builders import a_request
from tests.support.lake import Lake

A = Owner("ns", "a", "uid-a", "table-a", "cluster")


def contents(folder: Path) -> dict[str, str]:
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.rglob("*") if p.is_file()}


def refused(story: Story, place: str, layout: str = "File", **properties: str) -> InputError:
    spec = story.consolidation("A", buffer=BufferRef(uri=place, layout=layout, format="avro"))
    context: Any = story.context(spec)
    context = replace(context, catalog_properties={**context.catalog_properties, **properties})
    with pytest.raises(InputError) as found:
        job_of(spec.kind)(context)
    return found.value


@pytest.fixture
@built_once
def story(spark: SparkSession, lake: Lake) -> Story:
    return with_a_batch(Story.begin(spark, lake), "own")


def with_a_batch(story: Story, batch_id: str) -> Story:
    story.put(batch_id)
    story.consolidate(batch_id)
    return story


@pytest.fixture(scope="module")
def refusing(spark: SparkSession, lake: Lake) -> Story:
    """All of whose runs are refused, so that its table stays as it is."""
    return with_a_batch(Story.begin(spark, lake), "own")


@pytest.fixture(scope="module")
def victim(spark: SparkSession, lake: Lake) -> Iterator[Story]:
    """A table that no run of another Dataset may touch."""
    victim = with_a_batch(Story.begin(spark, lake), "A")
    yield victim
    victim.check_reads(of_batches("A"))


BELOW = ["", "/", "/metadata", "/data", "/data/x", "/metadata/../data", "//metadata/", "/%2e/metadata"]
QUICK = ("", "File"), ("/metadata/../data", "Directory")


@pytest.mark.parametrize(("below", "layout"), tuples(product(BELOW, ("File", "Directory")), *QUICK))
def test_a_run_moves_no_files_if_its_buffer_is_a_table(refusing: Story, victim: Story, below: str, layout: str) -> None:
    location = victim.table().location()
    before = contents(Path(local(location)))

    error = refused(refusing, f"{location}{below}", layout)

    assert error.reason == "BufferHoldsTable"
    assert before == contents(Path(local(location)))


def test_a_run_stops_at_a_table_outside_its_boundary(story: Story) -> None:
    story.put("A")
    before, location = story.states(), story.table().location()
    spec = story.consolidation("A")
    boundary = RunBoundary(uris=(spec.buffer.uri,))

    with pytest.raises(InputError, match="OutsideBoundary") as found:
        job_of(spec.kind)(story.context(spec.model_copy(update={"boundary": boundary})))

    assert f"the table's location {location} is outside the boundary uris of namespace air" in found.value.message
    assert (story.states(), story.folder("A").is_dir()) == (before, True)
    within = RunBoundary(uris=(spec.buffer.uri, location))
    assert story.run(spec.model_copy(update={"boundary": within})).outcome == "Committed"


def test_a_run_stops_at_another_datasets_claim_and_at_objects_that_are_no_batches(story: Story, tmp_path: Path) -> None:
    (tmp_path / "claimed").mkdir()
    take_claim(f"file://{tmp_path}/claimed", {}, A, "Directory")
    (tmp_path / "mixed").mkdir()
    (tmp_path / "mixed/token").write_text("s3cr3t")

    claimed = refused(story, f"file://{tmp_path}/claimed", "Directory")
    mixed = refused(story, f"file://{tmp_path}/mixed", "Directory")

    assert (claimed.reason, "ns/a" in claimed.message) == ("BufferClaimed", True)
    assert (mixed.reason, "s3cr3t" in mixed.message) == ("BufferHoldsOtherObjects", False)
    assert not (tmp_path / "mixed" / names.CLAIM_FILE).exists()


def test_the_buffer_of_a_dataset_is_claimed_by_its_first_run(story: Story) -> None:
    claim = read_claim(story.buffer.uri, {})

    assert claim is not None
    assert claim.owner is not None
    assert (claim.owner.name, claim.owner.table_uuid) == (story.name, str(story.table().metadata.table_uuid))


@pytest.mark.parametrize("uri", some(["file:///etc", "file:/var/run/secrets"], "file:///etc"))
def test_a_run_reads_no_local_folder_for_a_catalog_that_is_elsewhere(refusing: Story, uri: str) -> None:
    error = refused(refusing, uri, "Directory", uri="https://catalog.example", warehouse="s3://lake/warehouse")

    assert error.reason == "BufferLocal"
    assert "passwd" not in error.message


@pytest.mark.parametrize("below", some(["data", "metadata", "data/../metadata", "data/deeper"], "data/../metadata"))
def test_a_replacement_and_a_list_in_a_table_are_refused(refusing: Story, victim: Story, below: str) -> None:
    """They are only read, and what they are read into is another table."""
    place = f"{victim.table().location()}/{below}"
    replay = a_request(
        "replay", "Replay", batch_ids=["own"], replacement=Replacement(batch_id="new", uri=f"{place}/new")
    )
    revert = a_request("listed", batch_ids=[], batch_ids_uri=f"{place}/ids.txt")

    found = refusing.restate(replay)
    _, aside = with_ids([revert], catalogs.properties(refusing.catalog), refusing.table().location())

    assert (found.succeeded, found.reason) == (False, "PlaceInTable")
    assert aside[revert.key].reason == "PlaceInTable"
