"""The annotation lethe.dev/vacuum-now: one vacuum for each value, of all batches or of some, and what became of it."""

import pytest
from lethe_operator.resources.vacuum_policy import InvalidVacuumNow, parse_vacuum_now

from tests.support.builders import NOW, a_ledger
from tests.support.resources import SETTINGS, a_dataset, a_policy, a_table, a_world
from tests.support.statuses import decide
from tests.unit.lethe_operator.vacuuming import VacuumStory

SHUT = {"schedule": "0 1 1 1 *", "timeZone": "UTC", "durationSeconds": 60}
FORMS = [
    ("now", ()),
    ("2026-03-01T12:00:00Z", ()),
    ("batches=a", ("a",)),
    ("batches=a,b,a", ("a", "b")),
    ("2026-03-01 batches=a,b", ("a", "b")),
    ("batches=a batches=b", ("a", "b")),
    ("batches=a%2Cb,50%25,x%20y,%C3%A9", ("a,b", "50%", "x y", "é")),
]


def asked(value: str, **changes: object) -> VacuumStory:
    return VacuumStory(annotations={"lethe.dev/vacuum-now": value}, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(("value", "ids"), FORMS)
def test_a_word_of_the_value_names_batches(value: str, ids: tuple[str, ...]) -> None:
    assert parse_vacuum_now(value).batch_ids == ids


WRONG = [
    ("batches=", "one of them is empty"),
    ("batches=a,,b", "one of them is empty"),
    ("batches=100%", "has a % without two hexadecimal digits after it"),
    ("batches=%FF", "is not percent-encoded UTF-8"),
    ("batches=" + ",".join(map(str, range(1001))), "names 1001 batches, at most 1000"),
]


@pytest.mark.parametrize(("value", "said"), WRONG)
def test_an_invalid_value_starts_nothing_and_is_reported(value: str, said: str) -> None:
    with pytest.raises(InvalidVacuumNow, match=said):
        parse_vacuum_now(value)
    story = asked(value)

    assert story.decide().launch is None
    assert story.told == ("Later", "InvalidVacuumNow")
    assert "InvalidVacuumNow" in {e.verdict.reason for e in story.events()}


def test_a_value_that_cannot_be_read_keeps_no_policy_from_its_work() -> None:
    assert asked("batches=", policies=(a_policy(),)).start().batch_ids == ()


def test_it_works_without_a_policy() -> None:
    story = asked("batches=A,B")

    spec = story.start()

    assert (spec.batch_ids, spec.policy, spec.expire_snapshots) == (("A", "B"), "ns/flights", True)


def test_under_a_policy_its_limits_hold_and_its_window_does_not() -> None:
    policy = a_policy(window=SHUT, limits={"maxBytesPerRun": "10Gi", "maxRunSeconds": 600})

    spec = asked("now", policies=(policy,)).start()

    assert (spec.max_bytes, spec.max_seconds, spec.stop_by) == (10 * 1024**3, 600, None)


def test_each_value_is_one_run_whose_outcome_is_visible() -> None:
    story = asked("monday", ledger=a_ledger("A"))
    story.start()
    story.decide()
    running = story.status["vacuum"]["requested"]["outcome"]
    story.end(ledger=a_ledger("A"))
    story.decide()
    again = story.decide().launch
    story.annotations = {"lethe.dev/vacuum-now": "tuesday"}

    assert (running, again) == ("Running", None)
    assert story.status["vacuum"]["requested"] | {"name": "", "runId": ""} == {
        "value": "monday",
        "outcome": "Succeeded",
        "message": "4 tombstones purged, 1 files rewritten, 0 files deleted, 0 snapshots expired.",
        "name": "",
        "runId": "",
    }
    assert story.start() is not None


def test_a_value_starts_no_second_vacuum_when_its_job_is_gone() -> None:
    story = asked("monday", ledger=a_ledger("A"))
    story.start()
    story.end("NothingToDo")
    story.decide()
    story.forget_jobs()

    assert story.decide().launch is None
    assert story.decide().launch is None
    assert story.status["vacuum"]["requested"]["outcome"] == "Succeeded"


def test_a_failure_is_visible_too() -> None:
    story = asked("monday", ledger=a_ledger("A"))
    story.start()
    story.fail(exit_code=10)
    story.decide()

    requested = story.status["vacuum"]["requested"]

    assert (requested["outcome"], "ended with exit code 10" in requested["message"]) == ("Failed", True)


def test_a_run_that_was_killed_after_it_had_purged_a_part_is_followed_by_another() -> None:
    """What it committed stays; one value is one wish, not one Job."""
    story = asked("monday", ledger=a_ledger("A", "B"))
    story.start()
    story.committed.add(story.launched[0].run_id)
    story.commit(a_ledger("B"))
    story.fail(exit_code=None)

    story.start()
    story.end()

    assert story.launched[0].run_id != story.launched[1].run_id
    assert story.decide().launch is None
    assert story.status["vacuum"]["requested"]["runId"] == story.launched[1].run_id


def test_the_job_of_a_value_is_kept_while_the_annotation_is_set() -> None:
    story = asked("monday")
    story.start()
    story.end()

    assert story.decide().needed == {story.launched[0].run_id}
    story.annotations = {}
    assert story.decide().needed == frozenset()


def test_a_table_without_a_commit_has_nothing_to_vacuum() -> None:
    story = asked("now", head=None, ledger=a_ledger())

    assert story.decide().launch is None


def test_it_waits_while_the_dataset_is_paused() -> None:
    def launches(**annotations: str) -> int:
        dataset = a_dataset(meta={"annotations": {"lethe.dev/vacuum-now": "now", **annotations}})
        return len(decide(dataset, a_world(table=a_table(a_ledger("A"))), NOW, SETTINGS).launches)

    assert (launches(), launches(**{"lethe.dev/paused": "true"})) == (1, 0)


@pytest.mark.parametrize("value", ["batches=" + "%" * 200_000, "batches=" + "%FF" * 60_000], ids=["escapes", "bytes"])
def test_a_status_quotes_only_the_beginning_of_a_long_value(value: str) -> None:
    """An annotation may have 256 KiB, and the status of the policy lists 20 Datasets."""
    story = VacuumStory((a_policy(),), a_ledger("A"), annotations={"lethe.dev/vacuum-now": value})

    entry = story.decide().entries["air"]

    assert story.told == ("Later", "InvalidVacuumNow")
    assert len(str(entry)) < 1000
