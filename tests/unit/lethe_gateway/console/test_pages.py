"""Pages over protocols: every page, with usual, hostile and any content, and never an error of its own."""

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import date, timedelta
from html.parser import HTMLParser
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lethe.buffer.batch_rows import BatchRow
from lethe.contract.result import ErasureOutcome, RequestResult, VacuumPlanned
from lethe.ledger.tombstone import BlockerKind, Erasure, ErasureBlocker
from lethe_gateway.identity.caller import Right
from lethe_gateway.problems import Kind, Problem
from lethe_gateway.settings import CallerLimits, GatewaySettings
from lethe_gateway.tables.looking import RowsOfHolds
from lethe_gateway.tables.records import BatchFacts, KnownErasure

from tests.support.builders import NOW
from tests.support.clock import wait_until
from tests.support.gateway_lake import DATASET_STATUS, run
from tests.support.gateway_parts import DESCRIPTION, RIGHTS, OneTable, Parts, Resources, Rights
from tests.support.resources import a_dataset_body, a_restatement_body
from tests.unit.lethe_gateway.console.conftest import HOST, Session, a_session

D, R = "/console/ns/datasets/flights", "/console/ns/restatements"
HOSTILE = "<script>alert(1)</script>\u202e'\"&" + "x" * 200
CHANGES = {Right.to_restate("ns"), Right.to_annotate("ns", "flights")}
KEY = "ns/erase-d/1f"


class _Page(HTMLParser):
    """The tags of a page, and whether all are closed in order."""

    VOID = frozenset({"meta", "link", "input", "br", "img", "rect", "line"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self._open: list[str] = []
        self.feed(text)
        assert self._open == [], self._open

    def links(self, part: str) -> list[str]:
        """The addresses with this part."""
        return [v for n, v in self.attributes if n == "href" and v and part in v]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self._open, tag
            assert self._open.pop() == tag, tag


def lake(text: str = "the producer sent it twice", id: str = "A", **status: Any) -> Parts:
    """A Dataset in every state that a page shows, with this text wherever somebody else may write one."""
    blockers: dict[str, Any] = {"blockers": (ErasureBlocker(BlockerKind.TAG, "q1", why=text),), "blockers_count": 3}
    request = RequestResult(key=KEY, name="ns/erase-d", succeeded=True, committed_time=NOW, operation="Erase")
    outcome = ErasureOutcome(
        restatement="ns/erase-v", verified_time=NOW, record="s3://b/r.json", record_sha256="0" * 64
    )
    verified = request.model_copy(update={"key": "ns/erase-v/2f", "erasure": outcome})
    rows = [
        BatchRow(id, "promoted", NOW, rows=3, bytes=10, objects=1),
        BatchRow("E", "refused", NOW, refusal_message=text),
    ]
    taken = BatchRow("D", "reverted", NOW, rows=3, restatement=KEY)
    facts = {r.batch_id: BatchFacts(r, NOW, None, None, None, None) for r in rows}
    facts["D"] = BatchFacts(taken, NOW, None, None, request, Erasure(KEY, 2, NOW, **blockers))
    purged = Erasure(KEY, 2, NOW, purged_by=5, purged_at=5, **blockers)
    tables = OneTable(
        [*rows, taken],
        facts=facts,
        known=[KnownErasure(KEY, request, purged), KnownErasure("ns/erase-v/2f", verified, None)],
        files={"s3://b/r.json": text.encode()},
    )
    plan = {"digest": "d1", "files": 3, "bytes": 30_000_000, "tombstones": 2, "inVainPercent": 12, "sortDrift": "1.2"}
    full = DATASET_STATUS | {
        "conditions": [{"type": "Ready", "status": "False", "reason": "CatalogUnavailable", "message": text}],
        "vacuum": {
            "decision": "NeedsApproval",
            "message": text,
            "policy": "nightly",
            "plan": plan,
            "evictBy": {"time": "2026-03-04T00:00:00Z", "possibleUntilTime": "2026-03-03T20:00:00Z"},
        },
        "batches": {
            "promoted": 2,
            "refused": 1,
            "refusedBatches": [{"batchId": id, "message": text}],
            "held": 1,
            "heldBatches": [{"batchId": id, "message": text}],
        },
        "buffer": {"batches": 1, "bytes": 10, "invalid": 1, "invalidFolders": [{"folder": text, "message": text}]},
        "erasures": {"open": 2, "blocked": 1, "overdue": 1, "nextDueTime": "2026-03-01T00:00:00Z"},
        "holds": [
            {"name": "case-7", "active": False, "until": "2026-04-01T00:00:00Z", "message": text},
            {"name": "all", "active": True},
        ],
        "runs": [run("flights-1", message=text, progress="1/2", executors="1/2"), run("flights-0", phase="Failed")],
        **status,
    }
    failed = [{"type": "Succeeded", "status": "False", "reason": "UnknownBatchIds", "message": text}]
    planned = {"phase": "Succeeded", "plan": {"batches": 1, "files": 2, "bytes": 3, "wholeFiles": 0}}
    restatements = [
        a_restatement_body("failed", status={"conditions": failed, "phase": "Failed"}, reason=text, ticket=text),
        a_restatement_body("plan-plan", status=planned, dryRun=True, batchIds=[id]),
        a_restatement_body("waits", status={"queuePosition": 3}),
        a_request_body("forget", text),
    ]
    datasets = [a_dataset_body(status=full), a_dataset_body("new")]
    resources = Resources(
        logs={"flights-0": [text, "died"]},
        of={"datasets": datasets, "restatements": restatements, "vacuumpolicies": [policy()]},
    )
    return Parts(resources=resources, tables=tables, identity=Rights(rights=RIGHTS | CHANGES))


def a_request_body(name: str, text: str) -> dict[str, Any]:
    """An Erase of a subject from two Datasets, one of which is blocked."""
    values = {"secretKeyRef": {"name": "erase-a", "key": "customer"}}
    parts = [
        {"name": "new", "state": "Blocked", "reason": "RequesterNotAllowed", "message": text},
        {"name": "flights", "state": "Verified", "restatement": "forget-flights", "rowsErased": 1234, "message": text},
        {"name": "seats", "state": "Hidden", "rowsRedacted": 77},
    ]
    status = {
        "phase": "Running",
        "subject": {"selected": 4, "hidden": 2, "verified": 1, "blocked": 1, "datasets": parts},
        "erasure": {"record": "s3://b/whole.json", "recordSha256": "f" * 64},
    }
    body = a_restatement_body(name, status=status, operation="Erase")
    spec = {"operation": "Erase", "datasetSelector": {}, "subject": {"identity": "customer", "valuesFrom": values}}
    return {**body, "spec": spec}


def policy() -> dict[str, Any]:
    return {
        "metadata": {"name": "nightly", "namespace": "ns"},
        "spec": {"approval": "Manual", "window": {"schedule": "0 2 * * *", "durationSeconds": 3600}},
        "status": {"datasetsCount": 1, "nextWindowTime": "2026-03-02T02:00:00Z"},
    }


PAGES = (
    "/console/",
    "/console/-/search",
    "/console/-/search?q=f",
    "/console/-/search?q=A&namespace=ns&dataset=flights",
    "/console/ns/attention",
    "/console/ns/datasets",
    "/console/ns/datasets?name=zzz",
    "/console/ns/datasets?show=attention",
    D,
    f"{D}/table",
    f"{D}/runs/flights-1",
    f"{D}/runs/flights-0",
    "/console/ns/datasets/new",
    f"{D}/batches",
    f"{D}/batches?state=promoted&prefix=A&since=2026-03-01&until=2026-03-02",
    f"{D}/batches?since=0001-01-01&until=9999-12-31",
    f"{D}/batch?id=E",
    f"{D}/batch?id=D",
    f"{D}/restate",
    f"{D}/restate?operation=Replay&batch=A&batch=B",
    R,
    f"{R}?phase=Failed&dataset=flights",
    f"{R}/failed",
    f"{R}/plan-plan",
    f"{R}/waits",
    f"{R}/forget",
    "/console/ns/vacuums",
    "/console/ns/vacuums?decision=NeedsApproval",
    f"{D}/vacuum",
    "/console/ns/datasets/new/vacuum",
    "/console/ns/erasures",
    f"{D}/erasures",
    f"{D}/erasures?open=true",
    f"{D}/erasures/erase-d",
    f"{D}/erasures/erase-v",
)


@pytest.fixture(scope="module")
def shown() -> Iterator[Session]:
    return a_session(lake())


@pytest.fixture(scope="module")
def attacked() -> Iterator[Session]:
    return a_session(lake(HOSTILE, HOSTILE))


@pytest.mark.parametrize("path", PAGES)
def test_every_page_is_well_formed_and_has_no_script_or_style_in_it(shown: Session, path: str) -> None:
    answer = shown.get(path)

    assert answer.status_code == 200, answer.text
    page = _Page(answer.text)
    assert page.tags.count("script") == 1  # htmx, from a file
    assert "style" not in page.tags
    assert not [name for name, _ in page.attributes if name == "style" or name.startswith("on")]
    assert page.tags.count("h1") == 1


@pytest.mark.parametrize("path", [*PAGES, f"{D}/batch?id={'%3Cscript%3E'}"])
def test_what_others_write_is_text(attacked: Session, path: str) -> None:
    text = attacked.get(path).text

    assert "<script>alert" not in text
    assert "\u202e" not in text
    assert _Page(text).tags.count("script") == 1


def test_a_request_shows_its_datasets_with_their_restatements_and_its_record(shown: Session) -> None:
    text = shown.get(f"{R}/forget").text

    page = _Page(text)
    assert page.links("/datasets/new") == ["/console/ns/datasets/new"]
    assert page.links(f"{R}/forget-flights") == [f"{R}/forget-flights"]
    assert page.links("/erasures/") == [f"{D}/erasures/forget-flights"]
    for part in (
        "Blocked",
        "Verified",
        "1,234",
        "77 redacted",
        "the producer sent it twice",
        "s3://b/whole.json",
        "f" * 64,
        "customer",
    ):
        assert part in text
    assert "The first 3:" in text


def test_the_list_marks_a_request(shown: Session) -> None:
    row = shown.get(R).text.partition(f'href="{R}/forget"')[2].partition("</tr>")[0]

    assert "4 Datasets" in row
    assert "subject" in row


def test_hidden_characters_are_shown_as_escapes(attacked: Session) -> None:
    assert "\\u202e" in attacked.get(D).text


def test_a_hostile_id_leads_to_its_own_batch() -> None:
    session = a_session(lake(id=HOSTILE))

    assert session.get(f"{D}/batch", id=HOSTILE).status_code == 200
    assert session.get(f"{D}/batch", id=HOSTILE[:-1]).status_code == 404


def test_the_overview_shows_the_most_urgent_first(shown: Session) -> None:
    urgent = (
        "Not ready: CatalogUnavailable",
        "1 erasure is overdue",
        "A vacuum waits for approval",
        "1 batch is held by a check",
        "1 batch was refused",
    )
    # On a slow machine the first page says that it is not complete yet.
    wait_until(lambda: urgent[-1] in shown.get("/console/").text, 30)
    text = shown.get("/console/").text

    assert sorted(urgent, key=text.index) == list(urgent)
    assert "Revert failed" in text


def test_a_dataset_shows_its_holds_and_from_when_they_are_in_force(shown: Session) -> None:
    page = shown.get(D).text

    (section,) = re.findall(r'<h2 id="holds">.*?</section>', page, re.S)
    assert re.findall(r'<th scope="row">(.*?)</th><td>(.*?)</td>', section) == [("case-7", "no"), ("all", "yes")]
    assert "it is removed" in section
    assert "the producer sent it twice" in section


def test_a_namespace_without_trouble_is_called_calm() -> None:
    body = a_dataset_body(status={"conditions": [{"type": "Ready", "status": "True", "reason": "Available"}]})
    parts = Parts(resources=Resources({"datasets": [body], "restatements": []}))

    assert "All Datasets are ready" in a_session(parts).get("/console/").text


def test_the_overview_names_topics_that_are_not_read() -> None:
    lost = {"type": "SourceRead", "status": "False", "reason": "OffsetsLost", "message": "7 offsets have expired."}
    body = a_dataset_body(status={"conditions": [lost]})
    text = a_session(Parts(resources=Resources({"datasets": [body], "restatements": []}))).get("/console/").text

    assert "Its topics are not read: OffsetsLost" in text
    assert "7 offsets have expired." in text


def test_with_thousands_of_datasets_pages_are_small_and_the_only_trouble_is_on_the_overview() -> None:
    bad = {"conditions": [{"type": "Ready", "status": "False", "reason": "Lost", "message": "x"}]}
    every = [a_dataset_body(f"d{n:05}", status=bad if n == 1_999 else {}) for n in range(2_000)]
    session = a_session(Parts(resources=Resources({"datasets": every, "restatements": []})))
    overview = session.get("/console/").text
    while "Reading ns" in overview:
        overview = session.get("/console/").text

    first, found = (session.get("/console/ns/datasets", **query).text for query in ({}, {"name": "1999"}))
    following = _Page(first).links("cursor=")

    assert "Not ready: Lost" in overview
    assert (first.count('<th scope="row">'), found.count('<th scope="row">')) == (100, 1)
    assert "2,000 Datasets" in first
    assert 'datasets/d00100"' in session.get(following[0]).text
    assert max(len(overview), len(first)) < 100_000


def test_an_operator_that_is_silent_is_the_first_thing_on_the_overview() -> None:
    spec = {"holderIdentity": "lethe-system/lethe", "renewTime": "2026-03-01T10:00:00.000000Z"}
    parts = lake()
    parts.resources.of["leases"] = [{"metadata": {"name": "lethe-operator"}, "spec": spec}]
    text = a_session(parts).get("/console/").text

    assert text.index("No operator acts here") < text.index("Not ready: CatalogUnavailable")
    assert "has not renewed the Lease lethe-operator since 2026-03-01 10:00:00Z" in text


def test_a_failed_restatement_that_was_repeated_is_not_red() -> None:
    parts = lake()
    parts.resources.of["restatements"].append(
        a_restatement_body("again", status={"phase": "Succeeded"}, reason="mended")
    )
    before, after = a_session(lake()), a_session(parts)

    for path in ("/console/", R, f"{R}/failed"):
        assert 'badge bad">Failed' in before.get(path).text or "Revert failed" in before.get(path).text
        assert 'badge bad">Failed' not in after.get(path).text
        assert "Revert failed" not in after.get(path).text
    assert "has done the same with success since" in after.get(f"{R}/failed").text


def test_the_search_finds_batches_runs_requests_and_datasets() -> None:
    parts = lake(id="2026/A")
    parts.resources.of["restatements"].append(a_restatement_body("erase-9", ticket="DSAR-9"))
    session = a_session(parts)

    assert f"{D}/batch?id=2026%2FA" in session.get("/console/-/search", q="2026/").text
    assert f"{D}/runs/flights-1" in session.get("/console/-/search", q="GHTS-1").text
    assert f"{R}/erase-9" in session.get("/console/-/search", q="dsar-9").text
    assert "Nothing was found." in session.get("/console/-/search", q="zzz").text


def test_a_run_is_shown_with_the_end_of_its_log_or_why_there_is_none(shown: Session) -> None:
    assert "died" in shown.get(f"{D}/runs/flights-0").text
    assert "The cluster has no log of it" in shown.get(f"{D}/runs/flights-1").text
    assert shown.get(f"{D}/runs/flights-9").status_code == 404


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/console/ns/datasets?nam=a", "name"),
        (f"{D}/batches?states=promoted", "state"),
        (f"{D}/restate?batches=A", "batch"),
        ("/console/-/search?q=x&datasett=y", "dataset"),
        ("/console/-/login?nxt=/console/", "next"),
    ],
)
def test_an_unknown_parameter_is_refused_with_the_name_that_was_meant(shown: Session, path: str, meant: str) -> None:
    answer = shown.get(path)

    assert answer.status_code == 400
    assert f"(did you mean &#34;{meant}&#34;?)" in answer.text


def test_the_next_page_continues() -> None:
    rows = [BatchRow(f"b{n:03}", "promoted", NOW - timedelta(minutes=n)) for n in range(150)]
    parts = lake()
    parts.tables.rows = rows
    session = a_session(parts)
    text = session.get(f"{D}/batches").text
    (following,) = _Page(text).links("cursor=")

    assert "b099" in text
    assert "b100" not in text
    assert "b100" in session.get(following).text


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/console/other/datasets", 404),
        ("/console/ns/datasets/absent", 404),
        (f"{D}/batch?id=absent", 404),
        (f"{D}/batches?state=none", 400),
        (f"{D}/batches?since=2026-13-01", 400),
        (f"{D}/batches?cursor=x", 400),
        ("/console/ns/nothing", 404),
        (f"{D}/batch", 400),
        ("/console/ns/attention?of=secrets", 400),
    ],
)
def test_what_is_wrong_is_a_page_that_says_so(shown: Session, path: str, status: int) -> None:
    answer = shown.get(path)

    assert answer.status_code == status
    assert answer.headers["content-type"].startswith("text/html")
    _Page(answer.text)


def test_a_table_that_cannot_be_read_leaves_the_rest_of_the_page() -> None:
    parts = lake()
    parts.tables.problem = Problem(Kind.NO_TABLE, "The Dataset has no table yet.")
    answer = a_session(parts).get(D)

    assert answer.status_code == 200
    assert "The Dataset has no table yet." in answer.text
    assert "flights-1" in answer.text


def test_rows_that_are_too_old_are_shown_on_the_pages_of_the_table_and_of_the_vacuum() -> None:
    """The table is planned by the retention of the policy that applies to the Dataset."""
    parts = lake()
    (body,) = parts.resources.of["vacuumpolicies"]
    body["spec"]["retention"] = {"column": "<b>", "maxAgeDays": 30}
    vacuum = parts.resources.of["datasets"][0]["status"]["vacuum"]
    vacuum["plan"] |= {
        "retentionCutoff": "2026-01-30",
        "retentionWholeFiles": 9,
        "retentionRows": 70,
        "retentionBytes": 1,
    }
    vacuum["retention"] = {"cutoff": "2026-01-29", "nextTime": "2026-03-02T00:00:00Z", "left": True}
    planned = VacuumPlanned(digest="p", snapshot_id=7, retention_cutoff=date(2026, 1, 30), retention_whole_files=9)
    parts.tables.description = replace(DESCRIPTION, vacuum=planned)
    session = a_session(parts)

    table, next_vacuum = session.get(f"{D}/table").text, session.get(f"{D}/vacuum").text

    (rule,) = parts.tables.retentions
    assert rule is not None
    assert (rule.column, rule.max_age_days) == ("<b>", 30)
    for text in (table, next_vacuum):
        _Page(text)
        assert "Rows before 2026-01-30 (UTC) are too old: whole files</dt><dd>9" in text
        assert text.index("are too old") < text.index("Tombstones to apply")
    assert "30 days by <code>&lt;b&gt;</code>; rows before 2026-01-29 were removed in part" in next_vacuum


def test_while_something_runs_the_page_looks_again_soon(shown: Session) -> None:
    assert 'hx-trigger="every 3s"' in shown.get(D).text
    assert 'hx-trigger="every 30s"' in shown.get("/console/ns/datasets/new").text
    assert "hx-trigger" not in shown.get(f"{R}/failed").text


def test_a_record_that_was_changed_is_called_so(shown: Session) -> None:
    assert "Its SHA-256 is not that in the ledger" in shown.get(f"{D}/erasures/erase-v").text


def test_without_rights_to_change_anything_the_yaml_is_left() -> None:
    session = a_session(replace(lake(), identity=Rights()))
    text = session.get(f"{D}/restate").text

    assert '<button name="action" value="yaml">' in text
    assert text.count("disabled aria-describedby") == 2
    assert "Approve plan" not in session.get(f"{D}/vacuum").text


@pytest.mark.parametrize(
    ("result", "says"),
    [
        ({"rowsErased": 3}, "3 erased"),
        ({"rowsDeleted": 5, "rowsAdded": 0}, "5 deleted, 0 added"),
        ({"rowsDeleted": 0, "rowsAdded": 4, "rowsErased": 2}, "0 deleted, 4 added, 2 erased"),
    ],
    ids=["an Erase by records", "a Revert", "a Replay by keys"],
)
def test_a_restatement_shows_the_rows_that_its_result_has(result: dict[str, int], says: str) -> None:
    body = a_restatement_body("fix", status={"phase": "Succeeded", "result": result})
    session = a_session(Parts(resources=Resources({"restatements": [body]})))

    assert f"<dt>Rows</dt><dd>{says}</dd>" in session.get(f"{R}/fix").text


NAMES = ("q", "show", "namespace", "state", "prefix", "since", "until", "cursor", "id", "name", "phase", "dataset", "decision",
         "open", "next", "batch", "batch_ids", "operation", "evict_by_days", "uri", "plan", "action", "token", "secret",
         "undoes")  # fmt: skip
FORMS = (f"{D}/restate", f"{D}/vacuum/approve", f"{D}/vacuum/now", f"{R}/plan-plan/apply", f"{R}/absent/apply")
ODD = ["\x00", "%", "%zz", "%ff", "-1", "2026-02-30", "9999-12-31", "0001-01-01", "promoted", "../..", "[]", "x" * 5000]
TEXTS = st.one_of(st.text(max_size=40), st.sampled_from(ODD))
FIELDS = st.lists(st.tuples(st.sampled_from(NAMES), TEXTS), max_size=5)
PATHS = st.sampled_from([p.partition("?")[0] for p in PAGES])


@pytest.fixture(scope="module")
def there() -> Session:
    parts = lake()
    parts.settings = GatewaySettings(namespaces=("ns",), limits=CallerLimits(requests_per_second=1e6, burst=1_000_000))
    return a_session(parts)


def encoded(fields: list[tuple[str, str]]) -> str:
    return urlencode([(name, value.encode("utf-8", "surrogatepass")) for name, value in fields])


@given(path=PATHS, fields=FIELDS)
def test_any_query_is_answered_with_a_page(there: Session, path: str, fields: list[tuple[str, str]]) -> None:
    answer = there.client.get(f"{HOST}{path}?{encoded(fields)}", follow_redirects=False)
    while (unknown := re.search("unknown parameter &#34;([a-z_]*)", answer.text)) is not None:
        fields = [f for f in fields if f[0] != unknown[1]]
        answer = there.client.get(f"{HOST}{path}?{encoded(fields)}", follow_redirects=False)

    assert answer.status_code in (200, 303, 400, 404), (path, fields)
    _Page(answer.text)


@given(parts=st.lists(TEXTS.filter(bool), min_size=1, max_size=5))
def test_any_path_is_answered_with_a_page(there: Session, parts: list[str]) -> None:
    path = "/".join(quote(p.encode("utf-8", "surrogatepass"), safe="") for p in parts)
    answer = there.client.get(f"{HOST}/console/{path}", follow_redirects=False)

    assert answer.status_code in (200, 303, 307, 400, 404), path


@given(path=st.sampled_from(FORMS), fields=FIELDS)
def test_any_form_is_answered_with_a_page(there: Session, path: str, fields: list[tuple[str, str]]) -> None:
    body = encoded([*fields, ("form_key", there.form_key())])
    headers = {"Origin": HOST, "Content-Type": "application/x-www-form-urlencoded"}
    answer = there.client.post(f"{HOST}{path}", content=body, headers=headers, follow_redirects=False)

    assert answer.status_code in (200, 303, 400, 404, 409), (path, fields)


@pytest.mark.parametrize("body", [b"", b"\xff", b"a=%ff", b"&" * 5000, b"form_key=x&form_key=y"])
def test_a_broken_body_is_a_400_or_a_403(there: Session, body: bytes) -> None:
    headers = {"Origin": HOST, "Content-Type": "application/x-www-form-urlencoded"}

    assert there.client.post(f"{HOST}{D}/restate", content=body, headers=headers).status_code in (400, 403)


@pytest.mark.parametrize(
    ("held", "shown"),
    [
        (
            RowsOfHolds(("<b>", "case-7"), 2, 1_000, 31),
            ("<dt>Rows</dt><dd>1,000", "<dt>Batches</dt><dd>31", "&lt;b&gt;"),
        ),
        (RowsOfHolds(("case-7",), 2, 1_000, None), ("<dt>Data files</dt><dd>2", "too many to count")),
        ("the filter of hold <b> is not a condition", ("the filter of hold &lt;b&gt; is not",)),
    ],
)
def test_the_page_of_the_table_says_what_the_active_holds_may_cover(
    held: RowsOfHolds | str, shown: tuple[str, ...]
) -> None:
    parts = lake()
    parts.resources.of["datasets"][0]["spec"]["holds"] = [
        {"name": "case-7", "filter": "id = 4711"},
        {"name": "over", "until": "2026-01-01T00:00:00Z"},
    ]
    planned = VacuumPlanned(digest="p", snapshot_id=7, files_held=3)
    parts.tables.description = replace(DESCRIPTION, held=held, vacuum=planned)

    text = a_session(parts).get(f"{D}/table").text

    _Page(text)
    assert parts.tables.holds == [("case-7",)]
    assert not [part for part in (*shown, "holds may keep</dt><dd>3") if part not in text]
    assert "4711" not in text
