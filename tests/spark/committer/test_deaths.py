"""Committers that die, that are two, that are asked to go, and catalogs that lose answers: each request is carried out once."""

import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from lethe.contract.run import RunSpec
from lethe.contract.settings import Deletes
from lethe_spark.apps.session import make_session
from lethe_spark.run.context import KILLED
from pyspark.sql import SparkSession

from tests.spark.committer.runs import ALL, a_revert, an_undo
from tests.spark.parameters import pairs, some
from tests.spark.support.built_once import built_once
from tests.spark.support.mailbox import Process, committer, serving
from tests.spark.support.native_deletes import Native
from tests.spark.support.story import Story, of_batches
from tests.support.lake import CATALOG, Lake
from tests.support.mailbox import Namespace
from tests.support.servers.faults import Fault, Switch


@pytest.fixture
def begin(spark: SparkSession, lake: Lake) -> Callable[..., Story]:
    @built_once
    def make(catalog: str = CATALOG) -> Story:
        make_session(catalog)
        story = Story.begin(spark, lake, catalog=catalog)
        story.put(*ALL)
        story.consolidate(*ALL)
        return story

    return make


def commits_of(story: Story, *specs: RunSpec) -> list[int]:
    """How many snapshots of the head's history each run made."""
    made = Counter(story.keys(s).get("lethe.run-id", "") for s in story.snapshots())
    return [made[s.run_id] for s in specs]


# --- it dies ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "step", some(["after-search", "before-commit", "after-commit", "before-result"], "after-commit")
)
@pytest.mark.parametrize("version", some([2, 3], 3))
def test_native_deletes_whose_committer_died_are_committed_once(
    spark: SparkSession, another: Namespace, lake: Lake, log_file: Path, step: str, version: int
) -> None:
    story = Native.begin(spark, lake, format_version=version, deletes=Deletes.AUTO).filled("AB", "C")
    spec = a_revert(story, "A", "C")
    another.ask(spec)
    with committer(another.server, lake, log_file, crash_at=step) as dying:
        assert dying.wait() == KILLED, dying.log[-3000:]
    seen = story.plain()

    with committer(another.server, lake, log_file) as process:
        result = another.result(spec)

    committed = step in ("after-commit", "before-result")
    assert seen == (of_batches("B") if committed else of_batches("A", "B", "C"))
    assert result.outcome == ("AlreadyCommitted" if committed else "Committed"), process.log[-3000:]
    assert commits_of(story, spec) == [1]
    story.check_native(of_batches("B"))


def test_after_its_jvm_dies_the_process_ends_and_its_successor_carries_out_the_mailbox_once_and_in_order(
    begin: Callable[..., Story], another: Namespace, lake: Lake, log_file: Path
) -> None:
    """Of each Dataset a Revert, its Undo and another Revert: in any other order something else would be seen."""
    stories = [begin() for _ in range(3)]
    with serving(another.server, lake, log_file) as process:
        assert another.carried_out(a_revert(stories[0], "C", name="first")).outcome == "Committed"
        os.kill(process.jvm(), signal.SIGKILL)
        assert process.wait(30) == 1
    asked: list[tuple[Story, RunSpec]] = []
    for n in range(3):
        for story in stories:
            undo = an_undo(story, of="one")
            spec = (a_revert(story, "A", name="one"), undo, a_revert(story, "B", name="two"))[n]
            another.ask(spec)
            asked.append((story, spec))

    with committer(another.server, lake, log_file) as process:
        results = [another.result(spec) for _, spec in asked]

    assert {r.outcome for r in results} == {"Committed"}, process.log[-3000:]
    assert [commits_of(story, spec) for story, spec in asked] == [[1]] * len(asked)
    for n, story in enumerate(stories):
        story.check_reads(of_batches("A", *("C" if n else "")))


@pytest.mark.usefixtures("pg")
def test_two_committers_on_one_mailbox_carry_each_request_out_once(
    begin: Callable[..., Story], namespace: Namespace, process: Process, lake: Lake, log_file: Path
) -> None:
    """As while one is replaced by another. PostgreSQL takes their commits at the same time."""
    stories = [begin("pg") for _ in range(2)]
    asked: list[tuple[Story, RunSpec]] = []
    before = len(process.log)
    with serving(namespace.server, lake, log_file) as second:
        for n in range(6):
            for story in stories:
                spec = a_revert(story, ALL[n % 2], f"unheard-of-{n}", name=f"r{n}", unknown="Allow")
                namespace.ask(spec)
                asked.append((story, spec))
        results = [namespace.result(spec) for _, spec in asked]
        assert "run " in process.log[before:]
        assert "run " in second.log

    assert {r.outcome for r in results} <= {"Committed", "AlreadyCommitted"}
    assert all(r.requests[0].succeeded for r in results)
    assert [commits_of(story, spec) for story, spec in asked] == [[1]] * len(asked)
    for story in stories:
        assert set(story.ledger().requests) == {f"ns/r{n}/0" for n in range(6)}
        story.check_reads(of_batches("C"))


# --- it is asked to go ------------------------------------------------------------------------------------------------------


def test_sigterm_lets_the_commit_under_way_be_finished_and_takes_nothing_new(
    begin: Callable[..., Story], another: Namespace, lake: Lake, log_file: Path
) -> None:
    story = begin()
    first, second = a_revert(story, "A", name="first"), a_revert(story, "B", name="second")
    with serving(another.server, lake, log_file) as process:
        with story.lake.locked_catalog():
            another.ask(first)
            another.ask(second)
            another.server.wait_for(lambda: another.progress(first) is not None, 60)
            process.terminate()
            another.server.wait_for(lambda: "shutting down; runs of" in process.log, 10)
        assert process.wait(25) == 0, process.log[-3000:]

    assert another.result(first, within_seconds=1).outcome == "Committed"
    assert not another.is_done(second)
    story.check_reads(of_batches("B", "C"))


@pytest.mark.long
def test_sigterm_ends_a_commit_that_does_not_come_to_an_end_and_it_stays_in_the_mailbox(
    begin: Callable[..., Story],
    another: Namespace,
    namespace: Namespace,
    process: Process,
    lake: Lake,
    log_file: Path,
) -> None:
    """Within what Kubernetes grants, which then kills. Another committer carries it out."""
    story = begin()
    spec = a_revert(story, "A", name="cut-off")
    with serving(another.server, lake, log_file) as ending, story.lake.locked_catalog():
        another.ask(spec)
        another.server.wait_for(lambda: another.progress(spec) is not None, 60)
        ending.terminate()
        assert ending.wait(25) == 0, ending.log[-3000:]
    assert (another.is_done(spec), commits_of(story, spec)) == (False, [0])

    assert process.is_up()
    assert namespace.carried_out(spec).requests[0].succeeded

    assert commits_of(story, spec) == [1]


# --- catalogs that lose answers ---------------------------------------------------------------------------------------------

CUT = {"landed": Fault(landed=True), "lost": Fault(landed=False)}
HTTP = {"landed-503": Fault(landed=True, answer=503), "lost-502": Fault(landed=False, answer=502)}
FAULTS = [*(("pg", name, fault) for name, fault in CUT.items()), *(("rest", *of) for of in (CUT | HTTP).items())]
QUICK = {("pg", "landed"), ("rest", "lost-502")}
CASES = [
    pytest.param(catalog, fault, id=f"{catalog}-{name}", marks=() if (catalog, name) in QUICK else pytest.mark.long)
    for catalog, name, fault in FAULTS
]


@pytest.mark.parametrize(("catalog", "fault"), CASES)
def test_a_commit_whose_answer_is_lost_happens_exactly_once(
    begin: Callable[..., Story],
    namespace: Namespace,
    process: Process,
    request: pytest.FixtureRequest,
    catalog: str,
    fault: Fault,
) -> None:
    switch: Switch = request.getfixturevalue(catalog)
    story = begin(catalog)
    spec = a_revert(story, "A")
    switch.arm(fault)

    result = namespace.carried_out(spec)

    assert (switch.struck, result.requests[0].succeeded) == (1, True), process.log[-3000:]
    assert commits_of(story, spec) == [1]
    story.check_reads(of_batches("B", "C"))


@pytest.mark.parametrize(("catalog", "landed"), pairs(("pg", "rest"), (True, False), ("rest", True)))
def test_a_catalog_that_stays_away_fails_the_attempt_and_the_next_one_finds_out(
    begin: Callable[..., Story],
    namespace: Namespace,
    process: Process,
    request: pytest.FixtureRequest,
    catalog: str,
    landed: bool,
) -> None:
    switch: Switch = request.getfixturevalue(catalog)
    story = begin(catalog)
    spec = a_revert(story, "A")
    switch.arm(Fault(landed, outage=True))
    try:
        failed = namespace.carried_out(spec)
    finally:
        switch.end_outage()

    assert (failed.outcome, failed.permanent, switch.struck) == ("Failed", False, 1)
    assert failed.reason in ("CatalogOrStorageAway", "CommitStateUnknown")
    assert process.is_up()
    again = namespace.carried_out(spec.model_copy(update={"attempt": 2}))
    assert again.requests[0].succeeded
    assert commits_of(story, spec) == [1]
    story.check_reads(of_batches("B", "C"))


def test_a_password_is_in_no_log_and_on_no_command_line(
    begin: Callable[..., Story], namespace: Namespace, process: Process, lake: Lake
) -> None:
    uri = "postgresql+psycopg2://lethe:top%40secret@127.0.0.1:9/ice"
    lake.add_catalog("away", type="sql", uri=uri, warehouse="file:///nowhere")
    spec = a_revert(begin(), "A", name="away")
    spec = spec.model_copy(update={"table": spec.table.model_copy(update={"catalog": "away"})})

    result = namespace.carried_out(spec)

    assert (result.reason, result.permanent) == ("CatalogOrStorageAway", False)
    commands = Path(f"/proc/{process.jvm()}/cmdline").read_text()
    for text in (process.log, commands, result.to_json()):
        assert "top@secret" not in text
        assert "top%40secret" not in text
