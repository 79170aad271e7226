"""An Erase by records starts when everything that came before it is in the table, and takes its values from a mounted Secret."""

import json
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from lethe.base import names
from lethe.buffer.layout import BufferedBatch
from lethe.contract.result import RequestResult
from lethe.kube import CONFIG_MAPS, JOBS
from lethe.ledger.lineage import Snapshot
from lethe_operator.actions import Actions
from lethe_operator.resources.observed import AttemptState, Engine, NotListed, ObservedRun, WorkerView
from lethe_operator.resources.restatement import Restatement
from lethe_operator.restatement.assess import may_start_without_listing, wants_listing
from lethe_operator.runs.launch import launch
from lethe_operator.settings import Settings

from tests.support.builders import NOW, a_batch, a_ledger, a_request_entry
from tests.support.fake_cluster import FakeCluster
from tests.support.resources import (
    SETTINGS,
    a_buffer,
    a_buffered,
    a_dataset,
    a_restatement,
    a_restatement_run,
    a_result,
    a_run,
    a_table,
    a_world,
    an_attempt,
    condition,
    message,
)
from tests.support.statuses import decide, showing
from tests.unit.lethe_operator.queueing import members

COLUMN, SECRET = "tailnum", "erase-request-17"


def rows_of(secret: str) -> dict[str, Any]:
    return {"column": COLUMN, "valuesFrom": {"secretKeyRef": {"name": secret, "key": "values"}}}


def an_erase(name: str = "erase", secret: str = SECRET, **changes: Any) -> Restatement:
    """Created an hour ago, as all of them."""
    return a_restatement(name, operation="Erase", batchIds=(), **{"rows": rows_of(secret), **changes})


def decided(
    *restatements: Restatement, waiting: tuple[BufferedBatch, ...] = (), settings: Settings = SETTINGS, **spec: Any
) -> Actions:
    world = spec.pop("world", {})
    return decide(a_dataset(**spec), a_world(*waiting, restatements=restatements, **world), NOW, settings)


def told(actions: Actions, name: str = "erase") -> tuple[str, str]:
    """Whether it stalls, and why it is not ready."""
    status = actions.restatement_statuses[name]
    return condition(status, "Stalled")[0], condition(status, "Ready")[1]


# --- when ------------------------------------------------------------------------------------------------------------


def test_it_starts_when_nothing_waits() -> None:
    assert members(decided(an_erase())) == ["erase"]


def test_batches_that_came_before_it_are_promoted_first_without_waiting_for_more() -> None:
    """Their rows would come into the table after the search."""
    before = a_buffered("A", age_seconds=3601)

    actions = decided(an_erase(), waiting=(before,), consolidation={"minBatches": 100, "maxAgeSeconds": 86_400})

    assert [x.run.family for x in actions.launches] == ["Consolidation"]
    assert told(actions) == ("False", "WaitsForBatches")
    assert actions.dataset_status is not None
    assert actions.dataset_status["consolidation"]["reason"] == "WaitsForBatches"


def test_a_replay_of_rows_by_their_keys_waits_for_them_as_well() -> None:
    """Or the row of a batch that came before would be taken for a newer one. A Replay of batches does not."""
    replacement = {"batchId": "C1", "uri": "s3://lake/c1/"}
    changes, replay = (
        a_restatement("erase", operation="Replay", batchIds=["X"], replacement={**replacement, **keys})
        for keys in ({"keyColumns": ["tailnum"]}, {})
    )
    before = a_buffered("A", age_seconds=3601)
    patient = {"consolidation": {"minBatches": 100, "maxAgeSeconds": 86_400}}

    actions = decided(changes, waiting=(before,), **patient)

    assert [x.run.family for x in actions.launches] == ["Consolidation"]
    assert told(actions) == ("False", "WaitsForBatches")
    assert wants_listing([changes], NotListed(), a_table())
    assert members(decided(changes)) == members(decided(replay, waiting=(before,), **patient)) == ["erase"]


def test_batches_that_came_after_it_are_not_waited_for() -> None:
    """A producer that never stops would keep it from ever starting. What is as old as the youngest may have come before."""
    after, same = a_buffered("A", age_seconds=3598), a_buffered("B", age_seconds=3600)
    patient = {"consolidation": {"minBatches": 100, "maxAgeSeconds": 86_400}}

    assert members(decided(an_erase(), waiting=(after,), **patient)) == ["erase"]
    assert members(decided(an_erase(), waiting=(after, same), **patient)) == []


@pytest.mark.parametrize(
    "buffer",
    [NotListed(), replace(a_buffer(), horizons={"uid-of-another": NOW})],
    ids=["never", "before it was known"],
)
def test_a_listing_that_is_older_tells_nothing(buffer: Any) -> None:
    actions = decided(an_erase(), world={"buffer": buffer})

    assert members(actions) == []
    assert told(actions) == ("False", "BufferBeingListed")
    assert wants_listing([an_erase()], buffer, a_table())
    assert not wants_listing([an_erase(cancel=True), a_restatement()], buffer, a_table())
    assert not wants_listing([an_erase()], replace(a_buffer(), horizons={"uid-erase": NOW}), a_table())


def test_only_what_searches_for_rows_depends_on_a_listing() -> None:
    others = ([an_erase()], [a_restatement(suspend=True)], [a_restatement(cancel=True)])

    assert not any(map(may_start_without_listing, others))
    assert may_start_without_listing([an_erase(), a_restatement()])


# How far the clock of the API server, the operator or the store is from the others.
SKEWS = [timedelta(seconds=10), timedelta(seconds=-10), timedelta(hours=1), timedelta(hours=-1)]


@pytest.mark.parametrize("skew", SKEWS, ids=str)
def test_clocks_that_differ_neither_hide_a_batch_that_came_before_nor_keep_it_waiting_for_those_after(
    skew: timedelta,
) -> None:
    """The store's times are compared with the store's alone: the listing found `before`, and `after` came later."""
    erase = an_erase(meta={"creationTimestamp": (NOW + skew).isoformat()})
    before, after = a_buffered("A", age_seconds=60), a_buffered("B", age_seconds=59)
    horizons = {erase.meta.uid: before.oldest_time}
    patient = {"consolidation": {"minBatches": 100, "maxAgeSeconds": 86_400}}

    waits = decided(erase, world={"buffer": replace(a_buffer(before, after), horizons=horizons)}, **patient)
    goes = decided(erase, world={"buffer": replace(a_buffer(after), horizons=horizons)}, **patient)

    assert (members(waits), told(waits)) == ([], ("False", "WaitsForBatches"))
    assert members(goes) == ["erase"]


def test_batches_that_a_digest_cannot_name_may_have_come_before_it() -> None:
    """More wait than one run takes. Once that run is committed, the digest names none of the others, which still wait."""
    many = [a_buffered(i, age_seconds=4000 - n) for n, i in enumerate("ABCD")]
    erase, takes = an_erase(), {"consolidation": {"maxBatchesPerRun": 2}}
    listed = replace(a_buffer(*many, names=2), horizons={erase.meta.uid: many[-1].oldest_time})
    used_up = listed.as_of({i: a_batch(i) for i in "AB"})
    assert (used_up.oldest, used_up.is_cut) == ((), True)

    first = decided(erase, world={"buffer": listed}, **takes)
    then = decided(erase, world={"buffer": used_up}, **takes)

    assert [x.run.consolidation.batch_ids for x in first.launches if x.run.consolidation] == [("A", "B")]
    assert (then.launches, told(then)) == ((), ("False", "WaitsForBatches"))
    assert [wants_listing([erase], b, a_table()) for b in (listed, used_up)] == [False, True]


def test_it_starts_beside_a_digest_that_is_cut_when_all_that_is_not_named_came_after_it() -> None:
    """A backlog that never ends must not keep it from ever starting."""
    after = [a_buffered(i, age_seconds=100 - n) for n, i in enumerate("ABCD")]
    erase = an_erase()
    cut = replace(a_buffer(*after, names=2), horizons={erase.meta.uid: NOW - timedelta(seconds=3600)})

    assert cut.is_cut
    assert members(decided(erase, world={"buffer": cut}, consolidation={"suspend": True})) == ["erase"]


def test_a_dry_run_waits_for_no_batch_and_makes_none_hurry() -> None:
    """It tells of the files that are there. Which Secrets may be named holds for it, too."""
    dry, waiting = an_erase(dryRun=True), (a_buffered("A", age_seconds=3601),)
    patient = {"consolidation": {"minBatches": 100, "maxAgeSeconds": 86_400}}

    (launch,) = decided(dry, waiting=waiting, **patient).launches
    refused = decided(dry, settings=replace(SETTINGS, erase_secrets=("none",)))

    assert (launch.run.family, [s.secret for s in launch.secrets]) == ("Restatement", [SECRET])
    assert not wants_listing([dry], NotListed(), a_table())
    assert told(refused) == ("True", "SecretNotAllowed")


def test_neither_does_one_beside_a_ledger_of_before_an_undo() -> None:
    """Batches that the Undo lets in were not among those that waited."""
    summary = {names.LEDGER: "L2", names.TOMBSTONE_DELETED: "1"}
    line = Snapshot(1, None, 1, 0), Snapshot(2, 1, 2, 0, summary), Snapshot(3, 2, 3, 0)
    table = a_table(head_id=3, ancestry={s.id: s for s in line})
    old, new = (replace(a_buffer(), head_id=head, horizons={"uid-erase": NOW}) for head in (1, 2))

    waits = decided(an_erase(), world={"buffer": old, "table": table})
    goes = decided(an_erase(), world={"buffer": new, "table": table})

    assert (members(waits), told(waits)) == ([], ("False", "BufferBeingListed"))
    assert [wants_listing([an_erase()], b, table) for b in (old, new)] == [True, False]
    (launch,) = goes.launches
    assert launch.run.restatement is not None
    assert launch.run.restatement.listed_snapshot_id == 2


def test_a_run_that_searches_nothing_is_not_told_of_listings() -> None:
    (launch,) = decided(a_restatement(), world={"buffer": replace(a_buffer(), head_id=7)}).launches

    assert launch.run.restatement is not None
    assert launch.run.restatement.listed_snapshot_id is None


def test_with_a_suspended_consolidation_somebody_has_to_act() -> None:
    actions = decided(an_erase(), waiting=(a_buffered("A", age_seconds=7200),), consolidation={"suspend": True})

    assert told(actions) == ("True", "WaitsForBatches")
    assert "spec.consolidation.suspend of Dataset flights is true" in message(
        actions.restatement_statuses["erase"], "Ready"
    )


@pytest.mark.parametrize("withdrawn", [{"suspend": True}, {"cancel": True}])
def test_one_that_is_not_wanted_now_makes_nothing_hurry(withdrawn: dict[str, bool]) -> None:
    patient = {"consolidation": {"minBatches": 100, "maxAgeSeconds": 86_400}}

    actions = decided(an_erase(**withdrawn), waiting=(a_buffered("A", age_seconds=3601),), **patient)

    assert actions.launches == ()


def test_an_erase_by_batch_ids_waits_for_nothing_and_needs_no_spark() -> None:
    """Batches of these ids that come later are kept out."""
    erase = a_restatement("erase", operation="Erase", batchIds=["A"])
    world = {"committer": WorkerView(alive=True)}

    (launch,) = decided(erase, waiting=(a_buffered("A", age_seconds=7200),), world=world).launches[:1]

    assert (launch.engine, launch.secrets) == (Engine.COMMITTER, ())


def test_an_erase_by_records_is_never_the_committers() -> None:
    (launch,) = decided(an_erase(), world={"committer": WorkerView(alive=True)}).launches

    assert launch.engine is Engine.JOB


# --- from where ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("secret", "allowed", "stalls"),
    [
        ("erase-17", ("erase-*",), False),
        ("password", ("erase-*",), True),
        ("erase-17", (), True),
        ("password", ("password",), False),
        ("lethe-catalogs", ("*",), True),
        ("lethe-digest-key", ("*",), True),
    ],
)
def test_only_the_secrets_that_the_chart_allows_may_be_named(
    secret: str, allowed: tuple[str, ...], stalls: bool
) -> None:
    """Who may create a Restatement would otherwise learn which rows hold what any Secret holds."""
    actions = decided(an_erase(secret=secret), settings=replace(SETTINGS, erase_secrets=allowed))

    assert members(actions) == ([] if stalls else ["erase"])
    if stalls:
        assert told(actions) == ("True", "SecretNotAllowed")
        assert f"the Secret {secret}" in message(actions.restatement_statuses["erase"], "Ready")


def test_the_pod_finds_the_values_of_each_in_a_file_of_its_own_and_a_missing_secret_keeps_it_from_nothing() -> None:
    server = FakeCluster()
    several = {
        "anyOf": [rows_of("erase-18"), {"column": "seat", "valuesFrom": {"uri": "s3://x/seats"}}, rows_of("erase-19")]
    }
    (wanted,) = decided(an_erase("one"), an_erase("two", rows=several), a_restatement("other")).launches

    launch(server, a_dataset(), wanted, a_table(), NOW, SETTINGS)  # type: ignore[arg-type]

    (job,) = server.list(JOBS, "ns")
    pod = job["spec"]["template"]["spec"]
    (volume,) = [v for v in pod["volumes"] if v["name"] == "erase"]
    secrets = [source["secret"] for source in volume["projected"]["sources"]]
    assert [(s["name"], s["items"][0]["key"], s["optional"]) for s in secrets] == [
        ("erase-request-17", "values", True),
        ("erase-18", "values", True),
        ("erase-19", "values", True),
    ]
    (mount,) = [m for m in pod["containers"][0]["volumeMounts"] if m["name"] == "erase"]
    (key,) = [v["secret"] for v in pod["volumes"] if v["name"] == "digest-key"]
    assert (key["secretName"], key["optional"]) == ("lethe-digest-key", True)
    data = server.get(CONFIG_MAPS, "ns", "flights-runs")["data"]
    (run,) = [json.loads(text) for key, text in data.items() if key.endswith(".run.json")]
    conditions = [c for r in run["restatement"]["requests"] if "rows" in r for c in r["rows"]["conditions"]]
    assert [c["valuesUri"] for c in conditions] == ["", "", "s3://x/seats", ""]
    files = [c["valuesFile"] for c in conditions if not c["valuesUri"]]
    assert files == [f"{mount['mountPath']}/{s['items'][0]['path']}" for s in secrets]
    assert len(set(files)) == 3
    # For the message, should one not be there.
    assert [c["secret"] for c in conditions] == ["erase-request-17", "erase-18", "", "erase-19"]


def a_redact(name: str = "redact", key: str = "erase-hash-2026", **changes: Any) -> Restatement:
    redact = {
        "columns": [
            {"column": "owner", "method": "KeyedHash"},
            {"column": "email", "method": "Constant", "value": "-"},
        ],
        "hashKeyFrom": {"secretKeyRef": {"name": key, "key": "key"}},
    }
    return a_restatement(name, operation="Redact", redact=redact, **changes)


def test_the_pod_finds_the_key_of_the_hashes_of_a_redact_and_the_run_what_it_writes() -> None:
    server = FakeCluster()
    (wanted,) = decided(a_redact()).launches

    launch(server, a_dataset(), wanted, a_table(), NOW, SETTINGS)  # type: ignore[arg-type]

    (job,) = server.list(JOBS, "ns")
    pod = job["spec"]["template"]["spec"]
    (volume,) = [v for v in pod["volumes"] if v["name"] == "erase"]
    (secret,) = [source["secret"] for source in volume["projected"]["sources"]]
    (mount,) = [m for m in pod["containers"][0]["volumeMounts"] if m["name"] == "erase"]
    data = server.get(CONFIG_MAPS, "ns", "flights-runs")["data"]
    (run,) = [json.loads(text) for key, text in data.items() if key.endswith(".run.json")]
    (request,) = run["restatement"]["requests"]
    assert request["redact"] == {
        "columns": [
            {"column": "owner", "method": "KeyedHash"},
            {"column": "email", "method": "Constant", "value": "-"},
        ],
        "hashKeyFile": f"{mount['mountPath']}/{secret['items'][0]['path']}",
        "secret": "erase-hash-2026",
        "secretKey": "key",
    }


def test_the_key_of_hashes_is_in_an_allowed_secret() -> None:
    actions = decided(a_redact(key="password"))

    assert told(actions, "redact") == ("True", "SecretNotAllowed")
    assert "spec.redact.hashKeyFrom names the Secret password" in message(
        actions.restatement_statuses["redact"], "Ready"
    )


def test_a_redact_of_batches_waits_for_batches_that_came_before_it_and_needs_spark() -> None:
    redact = a_redact()
    asked = decided(redact, waiting=(a_buffered("A", age_seconds=7200),))

    assert told(asked, "redact")[1] == "WaitsForBatches"
    (wanted,) = decided(redact, world={"committer": WorkerView(alive=True)}).launches
    assert wanted.engine is Engine.JOB


def test_a_run_that_erases_nothing_mounts_nothing() -> None:
    server = FakeCluster()
    (wanted,) = decided(a_restatement()).launches

    launch(server, a_dataset(), wanted, a_table(), NOW, SETTINGS)  # type: ignore[arg-type]

    (job,) = server.list(JOBS, "ns")
    assert {"erase", "digest-key"}.isdisjoint(v["name"] for v in job["spec"]["template"]["spec"]["volumes"])


# --- created again ---------------------------------------------------------------------------------------------------

BEFORE = NOW - timedelta(days=9)  # when the one before it was created


def again(
    answer: dict[str, Any] | None = None, created: datetime | None = BEFORE, status: Any = None
) -> tuple[Restatement, Actions]:
    """An Erase with a key that the table remembers, and the decision about it.

    Args:
        answer: What its own run has told; None: it had none.
        created: When the Restatement that was carried out was; None: an earlier version did, which kept no such time.
    """
    erase = showing(an_erase(), status)
    entry = a_request_entry(erase.key, operation="Erase", requested_time=created, values_digest="k:d")
    runs: tuple[ObservedRun, ...] = ()
    if answer is not None:
        run = a_restatement_run(erase)
        result = a_result(run, requests=[RequestResult(key=erase.key, name="ns/erase", **answer)])
        runs = (a_run(run, an_attempt(run, AttemptState.SUCCEEDED, result=result, for_uid=erase.meta.uid)),)
    return erase, decided(erase, world={"table": a_table(a_ledger(requests=[entry])), "runs": runs})


@pytest.mark.parametrize("created", [BEFORE, None])
def test_one_that_was_created_again_is_no_success_before_a_run_has_compared_its_values(
    created: datetime | None,
) -> None:
    """Its Secret may have changed, and the operator may not read it."""
    _, actions = again(created=created)

    assert members(actions) == ["erase"]
    assert condition(actions.restatement_statuses["erase"], "Succeeded")[0] == "Unknown"


def test_the_result_counts_for_the_one_that_was_carried_out_and_for_one_with_the_same_values() -> None:
    same_object, same_values = again(created=an_erase().created)[1], again({"succeeded": True})[1]
    status = same_values.restatement_statuses["erase"]
    later = again(status=status)[1]

    for actions in (same_object, same_values, later):
        found = condition(actions.restatement_statuses.get("erase", status), "Succeeded")
        assert (actions.launches, found) == ((), ("True", "Succeeded"))


def test_one_with_other_values_fails_and_stays_so_although_the_table_remembers_its_key() -> None:
    refused = {"succeeded": False, "reason": "ValuesChanged", "message": "the values are others"}
    _, actions = again(refused)
    status = actions.restatement_statuses["erase"]
    _, later = again(status=status)

    assert (status["phase"], condition(status, "Succeeded")) == ("Failed", ("False", "ValuesChanged"))
    assert (later.launches, [c["type"] for c in status["conditions"] if c["type"] == "Erased"]) == ((), [])
    assert condition(later.restatement_statuses.get("erase", status), "Succeeded") == ("False", "ValuesChanged")
