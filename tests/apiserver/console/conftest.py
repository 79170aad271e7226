"""A real browser before a real gateway, which shows three Datasets in one namespace, none in another, thousands in a third."""

import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from lethe import batches_table
from lethe.kube import DATASETS, LEASES
from lethe.ledger.ledger import BatchState
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.support import gateway_lake
from tests.support.builders import a_batch
from tests.support.documents import resource
from tests.support.gateway_site import READS, Site, running_site
from tests.support.servers.gateway import role
from tests.support.tables import commit

MANY = 10_000  # batches of the Dataset `many`, and Datasets of the namespace `fleet`
LIVES_FOR_EVER = 10**8  # seconds: no operator is here to renew the Lease
HOSTILE_IDS = (
    "<script>alert('id')</script>",
    "\u202egnp.exe\u2066 \u05e9\u05dc\u05d5\u05dd",
    "x" * 256,
    "a/b?c=d&e#f%2F\"'",
    "line\nbreak\ttab",
)
HOSTILE_TEXT = "<img src=x onerror=alert('text')> \u202e" + "y" * 300
D = "/console/default/datasets/flights"
# Tests write their pictures here for the docs; "": nowhere.
PICTURES = os.environ.get("LETHE_SCREENSHOTS", "")
STATUS: dict[str, Any] = {
    **gateway_lake.DATASET_STATUS,
    "erasures": {"open": 1, "blocked": 1, "overdue": 0, "nextDueTime": "2026-03-04T12:00:00Z"},
    "vacuum": {
        "policy": "nightly",
        "decision": "NeedsApproval",
        "reason": "ApprovalNeeded",
        "message": "2 tombstones are older than 7 days. The plan rewrites 3 files, 310 MB.",
        "plan": {
            "digest": "d1f0a2",
            "files": 3,
            "bytes": 310_000_000,
            "wholeFiles": 1,
            "tombstones": 2,
            "rows": 5_210,
            "inVainPercent": 4,
            "sortDrift": "1.1",
            "plannedTime": "2026-03-01T11:50:00Z",
        },
        "evictBy": {"time": "2026-03-04T12:00:00Z", "possibleUntilTime": "2026-03-04T10:30:00Z"},
    },
    "consolidation": {"decision": "Later", "reason": "BelowTriggers", "message": "1 batch waits, 10 bytes."},
    "table": {**gateway_lake.DATASET_STATUS["table"], "rows": 5_210},
}


MANY_STATUS: dict[str, Any] = {
    **gateway_lake.DATASET_STATUS,
    "batches": {"promoted": MANY, "reverted": 12, "refused": 0},
    "table": {"rows": 49_995_000},
    "buffer": {"batches": 3, "bytes": 7_340_032, "oldestBatchTime": "2026-11-25T11:58:30Z"},
    "tombstones": {"active": 12, "rows": 61_480},
    "consolidation": {"decision": "Running", "reason": "Triggered", "message": "3 batches, 7.0 MiB."},
    "vacuum": {"policy": "nightly", "decision": "Later", "reason": "BelowTriggers", "message": "12 of 100 tombstones."},
    "runs": [
        gateway_lake.run("many-7f3a", phase="Writing", progress="31/40 tasks", executors="2/2", message="40 files"),
        gateway_lake.run("many-v-19c2", kind="Vacuum", phase="Succeeded", message="214 files rewritten, 3.1 GB"),
    ],
}


HOSTILE_STATUS: dict[str, Any] = {
    "conditions": [{**gateway_lake.DATASET_STATUS["conditions"][0], "status": "False", "message": HOSTILE_TEXT}],
    "batches": {
        "promoted": 0,
        "refused": 5,
        "refusedBatches": [{"batchId": i, "reason": "SchemaMismatch", "message": HOSTILE_TEXT} for i in HOSTILE_IDS],
    },
}
POLICY = resource(
    "VacuumPolicy",
    "nightly",
    {
        "datasetSelector": {"matchLabels": {"team": "air"}},
        "triggers": {"activeTombstones": 100},
        "approval": "Manual",
        "window": {"schedule": "0 2 * * *", "timeZone": "Europe/Berlin", "durationSeconds": 7200},
    },
)


def looking(namespace: str) -> dict[str, Any]:
    """The Role of those who may see logs of runs, and whether an operator acts."""
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": f"looking-{namespace}", "namespace": namespace},
        "rules": [
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
            {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
            {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get"]},
        ],
    }


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The editor may change what the analyst only sees."""
    reader = role("reader", "default", *READS, ("datasets/batches", "get"))
    editor = role("editor", "default", ("restatements", "create"), ("datasets", "patch"))
    people = {"analyst": [reader], "editor": [reader, editor, looking("default")]}
    of_others = {name: role(f"reader-{name}", name, *READS, ("datasets/batches", "get")) for name in ("empty", "fleet")}
    fleet = [of_others["fleet"], looking("fleet")]
    people |= {"empty": [of_others["empty"]], "fleet": fleet, "newcomer": fleet}
    others = {"many": _many(), "hostile": _hostile()}
    documents = [POLICY, *(gateway_lake.dataset(name, table=f"air.{name}") for name in others)]
    folder = tmp_path_factory.mktemp("console")
    namespaces = ("empty", "fleet")
    with running_site(
        folder, people, documents, namespaces, LETHE_WATCH_NAMESPACES=",".join(("default", *namespaces))
    ) as found:
        for name, batches in others.items():
            table = f"air.{name}"
            commit(gateway_lake.flights_table(found.catalog, f"default/{name}", table), *batches)
            batches_table.bring_up_to_date(found.catalog, table, "batch_id", batches_table.TrackingUpdate(create=True))
        for name, status in (("flights", STATUS), ("hostile", HOSTILE_STATUS), ("many", MANY_STATUS)):
            found.server.kube.patch(DATASETS, "default", name, {"status": status}, "status")
        for namespace in ("default", "fleet"):
            _operate(found, namespace)
        yield found


def _operate(site: Site, namespace: str) -> None:
    """Hold the Lease of the namespace, as an operator does."""
    now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
    spec = {"holderIdentity": "lethe-system/lethe", "renewTime": now, "leaseDurationSeconds": LIVES_FOR_EVER}
    document = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "lethe-operator"}}
    site.server.kube.create(LEASES, namespace, {**document, "spec": spec})


@pytest.fixture(scope="session")
def fleet(site: Site) -> None:
    """Thousands of Datasets in the namespace `fleet`, of which a few need attention."""

    def create(n: int) -> None:
        name = f"feed-{n:05}"
        site.server.kube.create(DATASETS, "fleet", gateway_lake.dataset(name, table=f"air.feed_{n}"))
        site.server.kube.patch(DATASETS, "fleet", name, {"status": fleet_status(n)}, "status")

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(create, range(MANY)))


def fleet_status(n: int) -> dict[str, Any]:
    """Of the n-th Dataset: each thousandth is not ready, and each seventh has waiting batches."""
    ready = {**gateway_lake.DATASET_STATUS["conditions"][0], "type": "Ready"}
    if n % 1000 == 999:
        ready |= {"status": "False", "reason": "CatalogUnavailable", "message": "The catalog does not answer."}
    ended = {"phase": "Succeeded", "batches": 4, "rows": 40_000, "message": "4 batches promoted."}
    time = f"{datetime.now(UTC) - timedelta(minutes=n % 50):%Y-%m-%dT%H:%M:%SZ}"
    return {
        "conditions": [ready],
        "table": {"rows": 1_000 * n, "formatVersion": 2},
        "batches": {"promoted": 10 * n, "reverted": n % 3, "refused": 0},
        "buffer": {"batches": 3, "bytes": 3_000_000, "oldestBatchTime": time} if n % 7 == 0 else {"batches": 0},
        "tombstones": {"active": n % 3},
        "vacuum": {"decision": "Later", "reason": "BelowTriggers", "message": f"{n % 3} of 100 tombstones."},
        "runs": [{**gateway_lake.run(f"feed-{n:05}-c-1"), **ended, "startTime": time, "finishTime": time}],
    }


def _many() -> list[Any]:
    """More of them lately, as a producer that grows."""
    now, month = datetime.now(UTC), timedelta(days=29)
    return [a_batch(f"2026/{n:05}", time=now - month * (n / MANY) ** 1.3, rows=n) for n in range(MANY)]


def _hostile() -> list[Any]:
    refusal = f"SchemaMismatch: {HOSTILE_TEXT}"
    return [a_batch(i, BatchState.REFUSED, rows=None, refusal=refusal) for i in HOSTILE_IDS]


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    path = shutil.which("chromium") or shutil.which("google-chrome")
    assert path is not None, "these tests need Chromium: dev/packages.sh browser"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])  # root has no sandbox
        yield browser
        browser.close()


@dataclass
class Person:
    """A person with a browser. What the browser complains about is a failure."""

    site: Site
    page: Page
    complaints: list[str] = field(default_factory=list)

    def log_in(self, account: str, path: str = "/console/") -> None:
        self.open(path)
        self.page.get_by_label("Token").fill(self.site.token(account))
        self.page.get_by_role("button", name="Log in").click()
        self.page.get_by_role("button", name="Log out").wait_for()

    def open(self, path: str) -> None:
        self.page.goto(f"{self.site.gateway.url}{path}")

    @property
    def path(self) -> str:
        return self.page.url.removeprefix(self.site.gateway.url)

    def picture(self, name: str, folder: str = PICTURES) -> None:
        """Take a picture.

        Args:
            folder: "": take none.
        """
        if folder:
            self.page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)

    def violations(self, *rules: str) -> list[str]:
        """What axe-core finds, by all of its rules or only by these."""
        chosen = {"runOnly": {"type": "rule", "values": list(rules)}} if rules else {}
        found = Axe().run(self.page, options={"resultTypes": ["violations"], **chosen}).response["violations"]
        return [f"{v['id']}: {node['html'][:200]}" for v in found for node in v["nodes"]]


OpenBrowser = Callable[..., Any]


@pytest.fixture
def someone(site: Site, chromium: Browser) -> Iterator[OpenBrowser]:
    """Opens a browser with these options; the test ends with no complaint of any."""
    contexts: list[BrowserContext] = []
    people: list[Person] = []

    def opened(account: str = "", **options: Any) -> Person:
        context = chromium.new_context(**{"viewport": {"width": 1200, "height": 800}, **options})
        context.set_default_timeout(15_000)
        contexts.append(context)
        person = Person(site, context.new_page())
        person.page.on(
            "console", lambda m: person.complaints.append(m.text) if m.type in ("error", "warning") else None
        )
        person.page.on("pageerror", lambda e: person.complaints.append(str(e)))
        person.page.on("dialog", lambda d: (person.complaints.append(f"dialog: {d.message}"), d.dismiss()))
        people.append(person)
        if account:
            person.log_in(account)
        return person

    yield opened
    for context in contexts:
        context.close()
    assert [c for p in people for c in p.complaints] == []


@contextmanager
def watching(page: Page, part: str) -> Iterator[None]:
    """Wait until the page has fetched an address with this part."""
    with page.expect_response(lambda r: part in r.url and r.ok):
        yield
