"""What the committer can carry out, what it does next, what it keeps apart, and what Prometheus scrapes of it."""

import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lethe.buffer.promotion import FILES_AT_MOST
from lethe.contract.result import RunOutcome, RunResult
from lethe.contract.run import (
    ConsolidationSpec,
    MailboxEntry,
    RestatementGroupSpec,
    RunKind,
    RunSpec,
)
from lethe.contract.settings import RunFamily
from lethe_spark.committer.reports import CommitterHealth, CommitterMetrics
from lethe_spark.committer.work import NeedsSpark, require_fit
from lethe_spark.jvm.standalone_jvm import with_timeouts
from lethe_spark.mailbox import (
    SETTLED_FOR_SECONDS,
    UPKEEP_EVERY_SECONDS,
    UPKEEP_LATE_SECONDS,
    UPKEEPS_AT_ONCE,
    Mailbox,
    MailboxMetrics,
    Post,
    Upkeep,
)
from lethe_spark.warm_driver.serve import WarmDriverMetrics

from tests.support.builders import a_replay, a_request, a_run, an_erase_of_rows, an_undo

BEGAN = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def an_entry(dataset: str = "a", second: int = 0, run: str = "1", **changes: object) -> str:
    known = {
        "dataset_uid": dataset,
        "run_id": run,
        "family": RunFamily.RESTATEMENT,
        "config_map": f"{dataset}-runs",
        "prefix": run,
        "created_time": BEGAN + timedelta(seconds=second),
    }
    return MailboxEntry.model_validate({**known, **changes}).to_json()


def a_mailbox(**data: str) -> Mailbox[str]:
    made: Mailbox[str] = Mailbox()
    made.put(data)
    return made


def take(mailbox: Mailbox[str], now: float = 0.0) -> str | None:
    """The key, or the Dataset of an upkeep."""
    match mailbox.take(now):
        case Post(key):
            return key
        case Upkeep(dataset_uid):
            return dataset_uid
    return None


def settle(mailbox: Mailbox[str], now: float, left: str | None = None) -> str:
    chosen = mailbox.take(now)
    assert isinstance(chosen, Post)
    mailbox.settled(chosen, now, left)
    return chosen.key


@pytest.mark.parametrize("is_reported", [True, False])
def test_a_run_that_is_cancelled_before_it_begins_does_not_end_another_one_of_its_dataset(is_reported: bool) -> None:
    mailbox = a_mailbox(first=an_entry("a", 1), second=an_entry("a", 2), third=an_entry("a", 3))
    first = mailbox.take(10)
    assert isinstance(first, Post)
    mailbox.put({"first": an_entry("a", 1), "second": an_entry("a", 2, cancelled=True), "third": an_entry("a", 3)})
    (cancelled,) = mailbox.cancelled(10)

    if is_reported:
        mailbox.settled(cancelled, 10)
    else:
        mailbox.put_off(cancelled, 15)

    assert (mailbox.runs_in_progress, mailbox.under_way) == (1, 1)
    assert mailbox.take(20) is None
    mailbox.settled(first, 20)
    assert (mailbox.runs_in_progress, take(mailbox, 20)) == (0, "third")


def test_an_unreported_result_delays_the_later_runs_of_its_dataset_and_nothing_else() -> None:
    mailbox = a_mailbox(first=an_entry("a", 1), second=an_entry("a", 2))
    first = mailbox.take(10)
    assert isinstance(first, Post)

    mailbox.put_off(first, until=15)

    assert (take(mailbox, 10), mailbox.next_due(10)) == (None, 5)
    mailbox.put({"first": an_entry("a", 1), "second": an_entry("a", 2), "b": an_entry("b", 9)})
    assert (take(mailbox, 10), take(mailbox, 15)) == ("b", "first")


def test_a_key_that_went_before_its_turn_is_not_carried_out() -> None:
    """So a run is called off."""
    mailbox = a_mailbox(one=an_entry("a", 1), two=an_entry("a", 2))

    mailbox.put({"two": an_entry("a", 2)})

    assert take(mailbox) == "two"


def test_late_news_of_a_key_that_was_taken_out_does_not_start_it_again() -> None:
    """What another key's change tells may be of before."""
    mailbox = a_mailbox(one=an_entry("a"))
    settle(mailbox, 0)

    mailbox.put({"one": an_entry("a"), "two": an_entry("b", 1)})

    assert (take(mailbox), take(mailbox)) == ("two", None)


def test_a_key_that_stays_though_it_was_taken_out_is_carried_out_again_after_a_while() -> None:
    """Somebody has put it there again, word for word."""
    mailbox = a_mailbox(one=an_entry("a"))
    settle(mailbox, 0)

    assert take(mailbox, SETTLED_FOR_SECONDS - 1) is None
    assert mailbox.next_due(SETTLED_FOR_SECONDS - 1) == 1
    assert take(mailbox, SETTLED_FOR_SECONDS) == "one"


def test_another_entry_under_a_key_that_was_taken_out_is_another_run() -> None:
    mailbox = a_mailbox(one=an_entry("a"))
    settle(mailbox, 0)

    mailbox.put({"one": an_entry("a", attempt=2)})

    assert take(mailbox) == "one"


def test_unreadable_keys_are_named_with_the_fields_and_without_their_values() -> None:
    mailbox = a_mailbox()

    bad = mailbox.put(
        {
            "good": an_entry("a"),
            "other-release": an_entry("a", api_version="lethe.dev/run/v9"),
            "wrong": an_entry("a").replace('"attempt":1', '"attempt":"topsecret"'),
            "text": "topsecret",
        }
    )

    assert set(bad) == {"other-release", "wrong", "text"}
    assert "attempt" in bad["wrong"]
    assert "lethe.dev/run/v9" in bad["other-release"]
    assert "topsecret" not in str(bad)
    assert (take(mailbox), take(mailbox)) == ("good", None)


# --- upkeep -----------------------------------------------------------------------------------------------------------------
def test_tidying_up_comes_after_the_runs_that_wait() -> None:
    mailbox = a_mailbox(one=an_entry("a", 1), two=an_entry("b", 2))
    settle(mailbox, 0, left="tidy a")

    assert (take(mailbox), take(mailbox), take(mailbox)) == ("two", "a", None)


def test_a_run_does_not_wait_for_the_tidying_up_of_its_dataset() -> None:
    """It updates the table of batches, which takes seconds on a busy machine, and a Revert is to be seen in one."""
    mailbox = a_mailbox(one=an_entry("a", 1))
    settle(mailbox, 0, left="1")
    assert mailbox.take(0) == Upkeep("a", "1")

    mailbox.put({"two": an_entry("a", 2), "three": an_entry("a", 3)})

    assert settle(mailbox, 1, left="2") == "two"
    assert take(mailbox, UPKEEP_EVERY_SECONDS) == "three"
    assert mailbox.take(UPKEEP_EVERY_SECONDS) is None, "the tidying up after the second run waits for the first"
    assert (mailbox.runs_in_progress, mailbox.under_way) == (1, 1)
    mailbox.kept_up("a")
    assert mailbox.take(UPKEEP_EVERY_SECONDS) == Upkeep("a", "2")


def test_tidying_up_is_done_once_for_many_runs_and_no_more_often_than_so() -> None:
    mailbox = a_mailbox(one=an_entry("a", 1), two=an_entry("a", 2))
    assert [settle(mailbox, 0, left="1"), settle(mailbox, 1, left="2")] == ["one", "two"]
    first = mailbox.take(1)
    assert first == Upkeep("a", "2")
    mailbox.kept_up("a")

    mailbox.put({"three": an_entry("a", 3)})
    settle(mailbox, 2, left="3")

    assert (take(mailbox, 3), mailbox.next_due(3)) == (None, UPKEEP_EVERY_SECONDS - 2)
    assert mailbox.take(1 + UPKEEP_EVERY_SECONDS) == Upkeep("a", "3")


def test_runs_of_others_do_not_put_tidying_up_off_for_ever() -> None:
    mailbox = a_mailbox(one=an_entry("a", 1), two=an_entry("b", 2), three=an_entry("c", 3))
    settle(mailbox, 0, left="tidy a")
    mailbox.put({"two": an_entry("b", 2), "three": an_entry("c", 3)})

    assert take(mailbox, UPKEEP_LATE_SECONDS - 1) == "two"
    assert take(mailbox, UPKEEP_LATE_SECONDS) == "a"


def test_tidying_up_leaves_threads_for_runs() -> None:
    datasets = [f"d{n}" for n in range(UPKEEPS_AT_ONCE + 1)]
    mailbox = a_mailbox(**{d: an_entry(d, n) for n, d in enumerate(datasets)})
    for _ in datasets:
        settle(mailbox, 0, left="tidy")

    assert [take(mailbox) for _ in datasets] == [*datasets[:UPKEEPS_AT_ONCE], None]
    mailbox.kept_up(datasets[0])
    assert take(mailbox) == datasets[-1]


# --- whatever comes ---------------------------------------------------------------------------------------------------------
@given(
    entries=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), max_size=8),
    moves=st.lists(st.sampled_from(["take", "settle", "put off", "tidy", "wait"]), max_size=60),
)
def test_in_whatever_order_things_end_each_is_done_once_in_order_and_no_dataset_twice_at_a_time(
    entries: list[tuple[str, int]], moves: list[str]
) -> None:
    data = {f"k{n}": an_entry(d, second, run=str(n)) for n, (d, second) in enumerate(entries)}
    mailbox = a_mailbox(**data)
    now = 0.0
    open_: list[Post | Upkeep[str]] = []
    done: list[Post] = []
    for move in [*moves, *(["settle", "tidy", "wait", "take"] * 2 * (len(entries) + 1))]:
        match move:
            case "take":
                chosen = mailbox.take(now)
                open_ += [chosen] if chosen is not None else []
            case "wait":
                now += 6
            case "tidy":
                for upkeep in [o for o in open_ if isinstance(o, Upkeep)]:
                    mailbox.kept_up(upkeep.dataset_uid)
                    open_.remove(upkeep)
            case _:
                for post in [o for o in open_ if isinstance(o, Post)][:1]:
                    open_.remove(post)
                    if move == "put off":
                        mailbox.put_off(post, now + 5)
                    else:
                        del data[post.key]
                        mailbox.settled(post, now, "tidy")
                        mailbox.put(data)
                        done.append(post)
        runs = [o.entry.dataset_uid for o in open_ if isinstance(o, Post)]
        upkeeps = [o.dataset_uid for o in open_ if isinstance(o, Upkeep)]
        assert (len(runs), len(upkeeps)) == (len(set(runs)), len(set(upkeeps)))
        assert mailbox.under_way == len({*runs, *upkeeps})

    assert sorted(p.key for p in done) == sorted(f"k{n}" for n in range(len(entries)))
    for dataset in "abc":
        mine = [p.order for p in done if p.entry.dataset_uid == dataset]
        assert mine == sorted(mine)


PAGE = Path(__file__).parents[3] / "docs/metrics.md"


def committer(mailbox: Mailbox[Any] | None = None, health: CommitterHealth | None = None) -> CommitterMetrics:
    return CommitterMetrics("ns", mailbox or Mailbox(), threading.Condition(), health or CommitterHealth())


def value(metrics: MailboxMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, {"namespace": "ns", **labels})


def a_result(outcome: RunOutcome, reason: str) -> RunResult:
    return RunResult(
        run_id="1", family=RunFamily.RESTATEMENT, outcome=outcome, reason=reason, finished_time=datetime.now(UTC)
    )


def test_runs_are_counted_by_outcome_and_a_run_that_a_job_carries_out_is_no_failure() -> None:
    metrics = committer()
    for outcome, reason in (
        (RunOutcome.COMMITTED, "Committed"),
        (RunOutcome.FAILED, "CatalogOrStorageAway"),
        (RunOutcome.FAILED, "NeedsSpark"),
    ):
        metrics.result_delivered(a_result(outcome, reason), 0.3)

    found = {
        (s.labels["outcome"], s.labels["reason"]): s.value
        for m in metrics.registry.collect()
        for s in m.samples
        if s.name == "lethe_committer_runs_total"
    }
    assert found == {
        ("Committed", "Committed"): 1,
        ("Failed", "CatalogOrStorageAway"): 1,
        ("LeftToAJob", "NeedsSpark"): 1,
    }
    assert value(metrics, "lethe_committer_run_duration_seconds_count", kind="Restatement") == 3


def test_the_mailbox_shows_what_waits_what_is_in_progress_and_how_old_the_oldest_is() -> None:
    now = datetime.now(UTC)
    ages = {"a": 90, "b": 50, "c": 10}
    mailbox = a_mailbox(**{k: an_entry(k, created_time=now - timedelta(seconds=age)) for k, age in ages.items()})
    metrics = committer(mailbox)
    begun = mailbox.take(0.0)
    assert isinstance(begun, Post)

    waiting, running = "lethe_committer_runs_waiting", "lethe_committer_runs_in_progress"
    age = "lethe_committer_mailbox_oldest_age_seconds"
    assert (value(metrics, waiting), value(metrics, running)) == (2, 1)
    assert value(metrics, age) == pytest.approx(90, abs=5)

    mailbox.settled(begun, 1e12)  # later than the monotonic clock of this machine
    assert (value(metrics, waiting), value(metrics, running)) == (2, 0)
    assert value(metrics, age) == pytest.approx(50, abs=5)

    mailbox.put({})
    assert (value(metrics, waiting), value(metrics, age)) == (0, 0)


def test_a_committer_is_healthy_while_it_renews_its_lease() -> None:
    health = CommitterHealth()
    metrics = committer(health=health)
    assert value(metrics, "lethe_committer_healthy") == 0

    health.mailbox_time = health.jvm_time = 1e12

    assert value(metrics, "lethe_committer_healthy") == 1


def test_the_page_about_metrics_names_every_one() -> None:
    page = PAGE.read_text()
    for metrics in (committer(), WarmDriverMetrics("ns", Mailbox(), threading.Condition())):
        names = {m.name + ("_total" if m.type == "counter" else "") for m in metrics.registry.collect()}
        assert {n for n in names if n.startswith("lethe_") and f"`{n}`" not in page} == set()


REVERT = a_request("revert", batch_ids=["A"])
UNDO = an_undo("revert")
ERASE = a_request("erase", "Erase", batch_ids=["C"])
RECORDS = an_erase_of_rows("records")
LISTED = a_request("listed", batch_ids=(), batch_ids_uri="s3://lake/ids.txt")
DRY = a_run(RunKind.RESTATEMENT, restatement=RestatementGroupSpec(requests=(REVERT,), dry_run=True))
REPLAY = a_replay("replay", by="B2", batch_ids=["B"])
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
