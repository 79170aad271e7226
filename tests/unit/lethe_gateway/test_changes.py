"""The events of the stream of changes."""

import pytest
from lethe.kube import DATASETS, RESTATEMENTS
from lethe_gateway.problems import Kind, Problem
from lethe_gateway.resources.changes import Reported, StreamPlace, events_of, heartbeat, place_of, text_of

from tests.support.gateway_lake import run
from tests.support.resources import a_dataset_body, a_restatement_body


def names(type: str, runs: list[object], reported: Reported, only: str = "") -> list[str]:
    body = a_dataset_body(status={"runs": runs})
    found = events_of(DATASETS, {"type": type, "object": body}, reported, only)
    return [f"{name} {(data.get('run') or data['dataset'])['name']}" for name, data in found]


def test_only_runs_that_changed_are_reported() -> None:
    reported = Reported()
    old, ended = run("a"), run("b", phase="Succeeded")

    assert names("ADDED", [old, ended, run("c", phase="Failed")], reported) == ["run a", "dataset flights"]
    assert names("MODIFIED", [old, ended], reported) == ["dataset flights"]
    assert names("MODIFIED", [{**old, "progress": "1/2"}, ended], reported) == ["run a", "dataset flights"]
    assert names("MODIFIED", [run("new"), old, ended], reported) == ["run new", "run a", "dataset flights"]


def test_a_deleted_dataset_is_forgotten() -> None:
    reported = Reported()
    names("ADDED", [run("a")], reported)

    assert names("DELETED", [run("a")], reported) == ["dataset flights"]
    assert reported.runs == {}


def test_bookmarks_and_other_datasets_are_no_events() -> None:
    assert names("BOOKMARK", [], Reported()) == []
    assert names("ADDED", [run("a")], Reported(), only="other") == []
    restatement = {"type": "ADDED", "object": a_restatement_body("r")}
    assert [n for n, _ in events_of(RESTATEMENTS, restatement, Reported(), "other")] == []
    assert [n for n, _ in events_of(RESTATEMENTS, restatement, Reported(), "flights")] == ["restatement"]


def test_an_id_names_a_place_in_both_kinds() -> None:
    place = StreamPlace("12", "34").moved(DATASETS, "56")

    assert (place, place_of(place.id)) == (StreamPlace("56", "34"), place)
    assert (place.of(DATASETS), place.of(RESTATEMENTS)) == ("56", "34")


@pytest.mark.parametrize("id", ["1", "1-", "a-b", "1-2-3", "-1-2", "1-2\n", "9" * 21 + "-1"])
def test_what_is_no_id_is_refused(id: str) -> None:
    with pytest.raises(Problem) as e:
        place_of(id)

    assert e.value.kind is Kind.INVALID_REQUEST


def test_texts_of_events() -> None:
    assert text_of("run", {"a": "x\ny"}, "1-2") == b'id: 1-2\nevent: run\ndata: {"a":"x\\ny"}\n\n'
    assert text_of("run", {}) == b"event: run\ndata: {}\n\n"
    assert heartbeat("1-2") == b": heartbeat\nid: 1-2\n\n"
