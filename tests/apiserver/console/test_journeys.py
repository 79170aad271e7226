"""What people do in the console: an analyst, an on-call engineer, a privacy officer."""

import re

import yaml
from lethe.contract.kubernetes import APPROVE, VACUUM_NOW
from lethe.kube import DATASETS, RESTATEMENTS
from playwright.sync_api import expect

from tests.apiserver.console.conftest import MANY, D, OpenBrowser, Person, watching
from tests.support.gateway_site import Site

REASON = "the producer sent it twice"


def created(site: Site, name: str) -> dict[str, object]:
    return site.server.kube.get(RESTATEMENTS, "default", name)


def test_an_analyst_finds_out_what_happened_to_a_batch(someone: OpenBrowser) -> None:
    me: Person = someone("analyst")

    me.page.get_by_role("link", name="Datasets", exact=True).last.click()
    me.page.get_by_role("link", name="flights", exact=True).click()
    expect(me.page.get_by_role("heading", level=1)).to_contain_text("flights")
    me.page.get_by_role("link", name="Batches", exact=True).click()
    me.page.get_by_label("reverted").check()
    me.page.get_by_role("button", name="Filter").click()
    me.page.get_by_role("link", name="B", exact=True).click()

    history = me.page.get_by_role("listitem").locator("strong")
    expect(history).to_have_text([re.compile(f"^\\s*{act}") for act in ("Promoted", "Reverted", "Purged")])
    expect(me.page.get_by_text("the producer sent B twice")).to_be_visible()
    expect(me.page.get_by_text("LAKE-7")).to_be_visible()
    me.picture("console-batch")


def test_an_engineer_on_call_sees_the_state_and_searches_what_somebody_has_named(someone: OpenBrowser) -> None:
    """The most urgent things, then the figures; a batch, a run with its log, and a request are found by what people know."""
    me: Person = someone("editor")
    operator = me.page.locator("dl.numbers div").filter(has_text="Operator")
    expect(operator).to_contain_text("acts")
    expect(me.page.locator("dl.numbers div").filter(has_text="Rows")).to_contain_text("50,000,210")

    search = me.page.get_by_role("searchbox")
    search.fill("2026/09999")
    search.press("Enter")
    me.page.get_by_role("link", name="2026/09999").click()
    expect(me.page.get_by_role("heading", level=1)).to_contain_text("2026/09999")

    search.fill("many-v-19c2")
    search.press("Enter")
    me.page.get_by_role("link", name="many-v-19c2").click()
    expect(me.page.get_by_text("214 files rewritten")).to_be_visible()
    expect(me.page.get_by_text("The cluster has no log of it")).to_be_visible()

    search.fill("SENT TWICE")
    search.press("Enter")
    me.page.get_by_role("link", name="revert-b").click()
    me.page.get_by_role("link", name="flights", exact=True).click()
    me.page.get_by_role("link", name="Table", exact=True).click()
    expect(me.page.get_by_role("region", name="Columns").get_by_role("row")).to_have_count(3)
    expect(me.page.get_by_role("region", name="Snapshots")).to_contain_text("main")


def test_an_analyst_gets_yaml_for_git_and_may_apply_nothing(someone: OpenBrowser) -> None:
    me: Person = someone("analyst")
    me.open(f"{D}/batches")
    me.page.get_by_label("Choose A", exact=True).check()
    me.page.get_by_role("button", name="Revert the chosen…").click()
    me.page.get_by_label("Reason").fill(REASON)
    me.page.get_by_role("button", name="Show YAML").click()

    body = yaml.safe_load(me.page.locator("pre").inner_text())
    assert (body["kind"], body["spec"]["batchIds"], body["spec"]["reason"]) == ("Restatement", ["A"], REASON)
    assert me.page.get_by_role("button", name="Apply").is_disabled()
    assert me.page.get_by_role("button", name="Plan (dry run)").is_disabled()
    expect(me.page.get_by_text("you need the right to create")).to_be_visible()
    with me.page.expect_download() as download:
        me.page.get_by_role("button", name="Download YAML").click()
    assert download.value.suggested_filename == f"{body['metadata']['name']}.yaml"
    assert yaml.safe_load(download.value.path().read_text()) == body


def test_an_engineer_plans_a_revert_looks_at_the_plan_and_applies_it(someone: OpenBrowser, site: Site) -> None:
    me: Person = someone("editor")
    me.open(f"{D}/restate?operation=Revert&batch=A")
    me.page.get_by_label("Reason").fill(REASON)
    me.page.get_by_label("Name", exact=True).fill("revert-twice")
    me.page.get_by_role("button", name="Plan (dry run)").click()
    expect(me.page.get_by_role("heading", level=1)).to_contain_text("revert-twice-plan")

    # The operator is not here: what it would write appears on the page without a click.
    plan = {"batches": 1, "files": 2, "bytes": 3_000_000, "wholeFiles": 0, "unknownBatchIdsCount": 0}
    done = {"type": "Succeeded", "status": "True", "reason": "Planned", "message": "planned"}
    done |= {"lastTransitionTime": "2026-03-01T12:00:00Z"}
    status = {"phase": "Succeeded", "plan": plan, "conditions": [done]}
    site.server.kube.patch(RESTATEMENTS, "default", "revert-twice-plan", {"status": status}, "status")
    expect(me.page.get_by_role("heading", name="Plan", exact=True)).to_be_visible()
    me.picture("console-plan")
    me.page.get_by_role("button", name="Apply it to the table").click()

    expect(me.page.get_by_role("heading", level=1)).to_contain_text("revert-twice")
    spec = created(site, "revert-twice")["spec"]
    assert spec == {
        "datasetRef": {"name": "flights"},
        "operation": "Revert",
        "batchIds": ["A"],
        "reason": REASON,
        "dryRun": False,
        **{k: v for k, v in spec.items() if k in ("suspend", "cancel")},  # defaults of the definition
    }
    assert created(site, "revert-twice-plan")["spec"]["dryRun"] is True


def test_what_the_api_server_rejects_is_said_beside_the_form(someone: OpenBrowser) -> None:
    me: Person = someone("editor")
    me.open(f"{D}/restate?operation=Revert&batch=A")
    me.page.get_by_label("Name", exact=True).fill("no..name")
    me.page.get_by_role("button", name="Apply").click()

    expect(me.page.get_by_role("alert")).to_contain_text("RFC 1123")
    me.complaints.clear()  # the browser reports the 422
    assert me.page.get_by_label("Name", exact=True).input_value() == "no..name"


def test_an_engineer_approves_a_vacuum_by_its_plan(someone: OpenBrowser, site: Site) -> None:
    me: Person = someone("editor")
    me.page.get_by_role("link", name="A vacuum waits for approval").first.click()
    expect(me.page.get_by_text("296 MiB")).to_be_visible()
    expect(me.page.get_by_text("Europe/Berlin")).to_be_visible()
    me.picture("console-vacuum")
    me.page.get_by_role("button", name="Approve plan d1f0a2").click()
    me.page.get_by_role("button", name="Request a vacuum now").click()

    expect(me.page.get_by_role("heading", level=1)).to_contain_text("Vacuum of flights")
    annotations = site.server.kube.get(DATASETS, "default", "flights")["metadata"]["annotations"]
    assert annotations[APPROVE] == "d1f0a2"
    assert annotations[VACUUM_NOW]


def test_a_privacy_officer_sees_what_is_due_and_what_blocks_it(someone: OpenBrowser) -> None:
    me: Person = someone(
        "analyst",
    )
    me.open("/console/default/erasures")
    me.page.get_by_role("link", name="flights").click()
    me.page.get_by_role("link", name="erase-d").click()

    expect(me.page.get_by_text("Blocked", exact=True)).to_be_visible()
    expect(me.page.get_by_text("tag of the first quarter")).to_be_visible()
    expect(me.page.get_by_text("There is none until the erasure is verified.")).to_be_visible()


def test_promotions_are_a_chart_with_a_table_of_the_same_numbers(someone: OpenBrowser) -> None:
    me: Person = someone("analyst")
    me.open("/console/default/datasets/many")
    chart = me.page.get_by_role("img", name=f"{MANY:,} batches that are promoted now")
    expect(chart).to_be_visible()
    assert chart.locator("rect").count() == 30
    me.picture("console-dataset")
    me.page.get_by_text("As a table").click()

    days = me.page.get_by_role("region", name="Promotions per day").locator("tbody td").all_inner_texts()
    assert sum(int(d.replace(",", "")) for d in days) == MANY


def test_progress_appears_without_a_click_and_keeps_the_focus(someone: OpenBrowser, site: Site) -> None:
    me: Person = someone("analyst")
    me.open(D)
    link = me.page.get_by_role("link", name="Batches", exact=True)
    link.focus()
    runs = [{"name": "flights-1", "kind": "Consolidation", "phase": "Committing", "progress": "39/40 tasks"}]
    site.server.kube.patch(DATASETS, "default", "flights", {"status": {"runs": runs}}, "status")

    expect(me.page.get_by_text("39/40 tasks")).to_be_visible()
    expect(link).to_be_focused()


def test_a_page_whose_session_has_ended_leads_to_the_login(someone: OpenBrowser) -> None:
    me: Person = someone("analyst")
    me.open(D)
    me.page.context.clear_cookies()
    with watching(me.page, "/-/login"):
        pass  # the next look for progress

    expect(me.page.get_by_role("heading", name="Log in")).to_be_visible()
