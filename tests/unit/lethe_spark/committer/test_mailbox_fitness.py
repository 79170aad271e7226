"""What the committer can carry out, and what it leaves to a Job."""

import pytest
from lethe.buffer.promotion import FILES_AT_MOST
from lethe.contract.run import ConsolidationSpec, Replacement, RestatementGroupSpec, RowsRef, RunKind, RunSpec
from lethe_spark.committer.work import NeedsSpark, require_fit
from lethe_spark.jvm.standalone_jvm import with_timeouts

from tests.support.builders import a_request, a_run

REVERT = a_request("revert", batch_ids=["A"])
UNDO = a_request("undo", "Undo", batch_ids=(), undoes="ns/revert/0")
ERASE = a_request("erase", "Erase", batch_ids=["C"])
RECORDS = a_request("records", "Erase", batch_ids=(), rows=RowsRef(column="tailnum", values_file="/values"))
LISTED = a_request("listed", batch_ids=(), batch_ids_uri="s3://lake/ids.txt")
DRY = a_run(RunKind.RESTATEMENT, restatement=RestatementGroupSpec(requests=(REVERT,), dry_run=True))
REPLAY = a_request("replay", "Replay", batch_ids=["B"], replacement=Replacement(batch_id="B2", uri="s3://x/B2"))

MANY = tuple(f"b{n}" for n in range(FILES_AT_MOST + 1))


def registering(*batch_ids: str) -> RunSpec:
    spec = ConsolidationSpec(mode="Register", batch_ids=batch_ids)
    return a_run(RunKind.CONSOLIDATION, consolidation=spec)


@pytest.mark.parametrize(
    "spec",
    [
        a_run(RunKind.RESTATEMENT, requests=(REVERT, UNDO, ERASE)),
        a_run(RunKind.REANCHORING),
        registering(*MANY[:FILES_AT_MOST]),
    ],
    ids=["a group", "a re-anchoring", "a registration"],
)
def test_what_changes_metadata_alone_is_carried_out(spec: RunSpec) -> None:
    require_fit(spec)


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (a_run(RunKind.RESTATEMENT, requests=(REVERT, REPLAY)), "ns/replay: a Replay writes data"),
        (a_run(RunKind.CONSOLIDATION, batch_ids=("A",)), "a consolidation of mode Rewrite writes data"),
        (registering(*MANY), "the committer registers at most 1000 files"),
        (a_run(RunKind.VACUUM), "a Vacuum writes data"),
        (a_run(RunKind.RESTATEMENT, requests=(RECORDS,)), "ns/records: it needs more than metadata"),
        (a_run(RunKind.RESTATEMENT, requests=(LISTED,)), "ns/listed: it needs more than metadata"),
        (DRY, "a dry run reads data files"),
    ],
    ids=[
        "a replay in a group",
        "a consolidation",
        "a large registration",
        "a vacuum",
        "records",
        "a list in a file",
        "a dry run",
    ],
)
def test_what_writes_data_is_left_to_a_job(spec: RunSpec, why: str) -> None:
    """Not for good: it exits as what may be tried again."""
    with pytest.raises(NeedsSpark, match=why) as refused:
        require_fit(spec)

    assert (refused.value.reason, refused.value.exit_code) == ("NeedsSpark", 20)


def test_a_catalog_that_does_not_answer_is_not_waited_for_for_ever() -> None:
    pg = with_timeouts({"type": "jdbc", "uri": "jdbc:postgresql://db/ice", "jdbc.socketTimeout": "7"})
    rest = with_timeouts({"type": "rest", "uri": "https://catalog/api"})

    assert (pg["jdbc.socketTimeout"], pg["jdbc.connectTimeout"]) == ("7", "5")
    assert rest["rest.client.socket-timeout-ms"] == "60000"
    assert with_timeouts({"uri": "jdbc:sqlite:/x"}) == {"uri": "jdbc:sqlite:/x"}
