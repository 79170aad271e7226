"""An Erase by several columns, by lists at URIs, and by values that another table has for those of the list."""

import json
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from lethe.base.errors import TransientError
from lethe.cli.main import cli
from lethe.contract.run import ConditionRef, LookupRef, RestatementRequest, RowsRef
from lethe.restatement.plan import values_digest
from lethe.search.candidates import CandidateFile
from lethe_spark.jobs.restatement import lookup
from pyspark.sql import SparkSession

from tests.spark.parameters import VERSION_2, VERSION_3
from tests.spark.support.built_once import built_once
from tests.spark.support.erases import Names, but, name_of, row, table_folder
from tests.spark.support.erasures import DUE, check_closed, next_attempt
from tests.spark.support.every_object import objects_with, of_folder
from tests.spark.support.redacts import a_redact, as_redacted, people_by_row, unredacted
from tests.spark.support.story import of_batches, results_by_name, some_rows
from tests.spark.support.trips import Trips, customer, passenger, ticket
from tests.support.builders import a_request
from tests.support.lake import Lake
from tests.support.steps import Killed, die

KEY = b"0123456789abcdef"
GONE, OTHER, THIRD, KEPT = row("B", 1), row("D", 2), row("A", 1), row("A", 0)
CUSTOMERS = pa.schema(
    [
        ("v", pa.int64()),
        ("day", pa.int32()),
        ("email", pa.string()),
        ("phones", pa.list_(pa.string())),
        ("number", pa.string()),
        ("ticket", pa.string()),
    ]
)


def mail(v: int) -> str:
    return f"mail of {name_of(v)}"


def phone(v: int) -> str:
    return f"phone of {name_of(v)}"


@dataclass(frozen=True)
class Customers(Names):
    """Each row has the address and the phones of somebody, and what the trips of the same batch have of them."""

    columns: str = (
        "v bigint, day int, email string, phones array<string>, number string, ticket string, batch_id string"
    )

    def put(self, *batch_ids: str, rows: int = 4, files: int = 1) -> None:
        for batch_id in batch_ids:
            found = [
                {
                    "v": -r["v"],
                    "day": r["day"],
                    "email": mail(r["v"]),
                    "phones": ["unknown", phone(r["v"])],
                    "number": str(r["v"]),
                    "ticket": ticket(r["v"]),
                }
                for r in some_rows(batch_id, rows)
            ]
            self.buffer.put(batch_id, pa.Table.from_pylist(found, CUSTOMERS), files)


@dataclass(frozen=True)
class Two:
    """Trips, and the customers in whose table an Erase of trips looks up."""

    trips: Trips
    customers: Customers

    def condition(self, *values: str, column: str, at_uri: bool = False) -> ConditionRef:
        made = self.trips.an_erase(*values, column=column).conditions[0]
        at = {"values_file": "", "secret": "", "secret_key": "", "values_uri": f"file://{made.values_file}"}
        return made.model_copy(update=at) if at_uri else made

    def via(self, *values: str, column: str, start: str, end: str, table: str = "") -> ConditionRef:
        ref = LookupRef(
            dataset="customers",
            catalog=self.customers.catalog,
            table=table or self.customers.name,
            batch_column="batch_id",
            from_column=start,
            to_column=end,
        )
        return self.condition(*values, column=column).model_copy(update={"via": ref})


def an_erase_by(*conditions: ConditionRef, name: str = "erase", digest: str = "") -> RestatementRequest:
    named = (c.model_copy(update={"field": f"spec.rows.anyOf[{n}]"}) for n, c in enumerate(conditions))
    rows = RowsRef(conditions=tuple(named), values_digest=digest)
    return a_request(name, "Erase", batch_ids=(), rows=rows, evict_by_seconds=DUE)


@pytest.fixture
def make(spark: SparkSession, lake: Lake) -> Callable[[int], Two]:
    @built_once
    def trips(version: int) -> Trips:
        return Trips.begin(spark, lake, format_version=version).filled()

    @built_once
    def customers(version: int) -> Customers:
        return Customers.begin(spark, lake, format_version=version).filled()

    return lambda version: Two(trips(version), customers(version))


@pytest.fixture(params=[2, 3], ids=["v2", "v3"])
def story(
    request: pytest.FixtureRequest, make: Callable[[int], Two], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Two:
    (tmp_path / "key").write_bytes(KEY)
    monkeypatch.setenv("LETHE_VALUES_DIGEST_KEY_FILE", str(tmp_path / "key"))
    return make(request.param)


def test_rows_that_meet_one_of_several_conditions_go_in_one_pass_and_every_byte_of_them(
    story: Two, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A row that meets two counts once. The values, and those that stand for them, are in no object, log or result."""
    caplog.set_level(logging.DEBUG, "lethe")
    caplog.set_level(logging.DEBUG, "lethe_spark")
    trips = story.trips
    conditions = (
        story.condition(customer(GONE[1]), "nobody", column="customer.email"),
        story.condition(passenger(GONE[1]), passenger(OTHER[1]), column="passengers.element.email", at_uri=True),
        story.via(mail(THIRD[1]), mail(OTHER[1]), "nobody", column="ticket.id", start="email", end="ticket"),
    )
    texts = [text(v) for _, v, _ in (GONE, OTHER, THIRD) for text in (customer, passenger, ticket)]
    context = trips.context(trips.restatement(an_erase_by(*conditions)))

    done = trips.carry_out(context)

    (result,) = done.requests
    assert (result.succeeded, result.rows_erased, result.group_size) == (True, 3, 1), result
    assert context.steps.count("after-search") == context.steps.count("after-lookup") == 1
    assert trips.physical() == but(GONE, OTHER, THIRD)
    assert trips.obligations() == [("ns/erase/0", trips.field_id("customer.email"))]
    check_closed(trips, trips.vacuum())
    assert objects_with(of_folder(table_folder(trips)), *texts) == []
    assert not any(text in f"{caplog.text}{done.to_json()}" for text in (*texts, mail(THIRD[1])))
    assert story.customers.physical() == Counter((b, -v, d) for b, v, d in but().elements())
    files = [c.values_file or c.values_uri.removeprefix("file://") for c in conditions]
    assert problems(trips, tmp_path / "key", *files) == []
    assert problems(trips, tmp_path / "key", *reversed(files)) == ["DigestDiffers"]


def problems(trips: Trips, key: Path, *files: str) -> list[str]:
    """What an auditor finds who has the lists and the key."""
    values = [option for file in files for option in ("--values", file)]
    command = ["erasures", "verify", trips.full_name, "ns/erase/0", "--digest-key", str(key), *values, "--json"]
    found = json.loads(CliRunner().invoke(cli, command).stdout)
    return [problem["code"] for problem in found["problems"]]


@VERSION_3
def test_a_redact_by_several_conditions_changes_the_rows_that_meet_one_of_them(story: Two) -> None:
    """Also those that another table names; a row that meets two counts once."""
    trips = story.trips
    rows = an_erase_by(
        story.condition(customer(GONE[1]), column="customer.email"),
        story.via(mail(GONE[1]), mail(OTHER[1]), column="ticket.id", start="email", end="ticket"),
    ).rows
    redact = a_redact(trips, "unused").model_copy(update={"rows": rows})

    result = trips.restate(redact)

    assert (result.succeeded, result.rows_redacted) == (True, 2), result.message
    chosen = (GONE[1], OTHER[1])
    assert people_by_row(trips) == {
        v: as_redacted(v) if v in chosen else unredacted(v) for _, v, _ in of_batches("A", "B", "D")
    }


def test_texts_of_another_table_name_whole_numbers_and_rows_that_it_does_not_show_name_nothing(story: Two) -> None:
    """One is in a list; of the others, one was taken back, one deleted by another engine, and one never there."""
    story.customers.revert("D")
    story.customers.sql(f"DELETE FROM {{t}} WHERE v = {-KEPT[1]}")
    phones = [phone(v) for v in (GONE[1], OTHER[1], KEPT[1])]
    erase = an_erase_by(story.via(*phones, "nobody", column="v", start="phones.element", end="number"))

    result = story.trips.restate(erase)

    assert (result.succeeded, result.rows_erased) == (True, 1), result
    story.trips.check_reads(but(GONE))


@VERSION_2
def test_the_batch_column_of_another_table_may_be_what_is_looked_up(story: Two) -> None:
    """As in a table whose rows say from which batch of another one they were made. Another batch of it was taken back."""
    story.customers.put("DE")
    story.customers.consolidate("DE")
    story.customers.revert("D")
    german = [row(b, n) for b in "ABD" for n in range(4) if row(b, n)[1] % 3 != 2 and row(b, n)[2] % 2 == 0]
    phones = [phone(v) for v in (row("DE", 1)[1], OTHER[1])]
    erase = an_erase_by(story.via(*phones, column="customer.country", start="phones.element", end="batch_id"))

    result = story.trips.restate(erase)

    assert (result.succeeded, result.rows_erased) == (True, len(german)), result
    assert german
    story.trips.check_reads(but(*german))


@VERSION_2
def test_an_erase_whose_values_another_table_does_not_have_succeeds_and_erases_nothing(
    story: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file is opened whose bounds exclude the values."""
    searched: list[CandidateFile] = []
    monkeypatch.setattr(lookup, "search", lambda _context, _request, files: searched.extend(files))
    head = story.trips.head().snapshot_id
    erase = an_erase_by(story.via("nobody", column="v", start="email", end="number"))

    result = story.trips.restate(erase)

    assert (result.succeeded, result.rows_erased, result.snapshot_id) == (True, 0, story.trips.head().snapshot_id)
    assert (result.snapshot_id != head, searched) == (True, [])
    story.trips.check_reads(but())


@VERSION_2
def test_lookups_that_cannot_be_made_are_refused_or_wait_without_a_value_in_their_message(
    story: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup, "MAX_VALUES", 2)
    value = mail(GONE[1])
    bad = {
        "IncompatibleColumns": story.via(value, column="v", start="email", end="ticket"),
        "ColumnNotSearchable": story.via(value, column="v", start="email", end="phones.element"),
        "ColumnNotFound": story.via(value, column="v", start="emial", end="number"),
        "TableNotFound": story.via(value, column="v", start="email", end="number", table="air.nobody"),
        "TooManyKeys": story.via("unknown", column="v", start="phones.element", end="number"),
    }
    erases = [an_erase_by(condition, name=reason) for reason, condition in bad.items()]
    good = an_erase_by(story.via(value, column="v", start="email", end="number"), name="good")

    done = story.trips.restate_all(*erases, good)

    results = results_by_name(done)
    assert {n: r.reason for n, r in results.items()} == {**{reason: reason for reason in bad}, "good": ""}
    assert [n for n, r in results.items() if r.again] == ["TableNotFound"]
    assert all("spec.rows.anyOf[0].via" in results[n].message for n in bad if n != "TableNotFound")
    assert not any(text in done.to_json() for text in (value, ticket(GONE[1]), str(GONE[1])))
    story.trips.check_reads(but(GONE))


@VERSION_2
def test_an_erase_waits_for_the_ledger_of_another_table_and_the_others_go_on(story: Two) -> None:
    """Without it, rows would count that were taken back."""
    for file in story.customers.ledger_files().values():
        file.unlink()
    via = story.via(mail(GONE[1]), column="v", start="email", end="number")
    plain = story.condition(customer(GONE[1]), column="customer.email")

    done = story.trips.restate_all(an_erase_by(via, name="waits"), an_erase_by(plain, name="goes"))

    results = results_by_name(done)
    assert {n: (r.succeeded, r.again) for n, r in results.items()} == {"waits": (False, True), "goes": (True, False)}
    assert results["waits"].message.startswith(
        "Restatement ns/waits: spec.rows.anyOf[0].via: Dataset customers cannot be read:"
    )


@VERSION_3
def test_a_run_that_died_after_a_lookup_looks_up_again(story: Two) -> None:
    """What came to the other table in between counts."""
    erase = an_erase_by(story.via(mail(GONE[1]), mail(row("E", 1)[1]), column="v", start="email", end="number"))
    run = story.trips.restatement(erase)
    with pytest.raises(Killed):
        story.trips.run(run, after_lookup=die)
    for some in (story.trips, story.customers):
        some.put("E")
        some.consolidate("E")

    (result,) = story.trips.run(next_attempt(run)).requests

    assert (result.succeeded, result.rows_erased) == (True, 2), result
    story.trips.check_reads(but(GONE, row("E", 1), batches=("A", "B", "D", "E")))


@VERSION_2
def test_a_list_at_a_uri_that_changed_since_a_run_first_read_it_is_refused(story: Two) -> None:
    condition = story.condition(customer(GONE[1]), column="customer.email", at_uri=True)
    file = Path(condition.values_uri.removeprefix("file://"))
    first = values_digest([file.read_bytes()], KEY)
    file.write_text(customer(OTHER[1]))
    missing = condition.model_copy(update={"values_uri": f"{condition.values_uri}-not-there"})

    done = story.trips.restate_all(
        an_erase_by(condition, name="changed", digest=first),
        an_erase_by(missing, name="missing"),
        a_request("revert", batch_ids=["A"]),
    )

    results = results_by_name(done)
    assert {n: (r.succeeded, r.again, r.reason) for n, r in results.items()} == {
        "changed": (False, False, "ListChanged"),
        "missing": (False, True, "ListNotFound"),
        "revert": (True, False, ""),
    }
    assert results["changed"].values_digest == values_digest([file.read_bytes()], KEY)
    with pytest.raises(TransientError, match=r"ListNotFound: .*spec\.rows\.anyOf\[0\]\.valuesFrom\.uri"):
        story.trips.restate_all(an_erase_by(missing, name="missing"))
    same = values_digest([file.read_bytes()], KEY)
    assert story.trips.restate(an_erase_by(condition, name="same", digest=same)).rows_erased == 1
