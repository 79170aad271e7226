"""Pages over the pages of the API server."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from lethe_gateway.resources import client
from lethe_gateway.resources.client import ResourcePage


def resources(counts: list[int]) -> list[dict[str, Any]]:
    """Each contributes so many results."""
    return [
        {"metadata": {"name": f"r{n:03d}"}, "results": [f"r{n:03d}.{i}" for i in range(c)]}
        for n, c in enumerate(counts)
    ]


def all_of(every: list[dict[str, Any]], limit: int, size: int, change: Any = lambda: None) -> list[list[str]]:
    """All pages.

    Args:
        size: Of the pages of the API server.
        change: Called before each page.
    """

    def read(after: str, _: int) -> ResourcePage:
        rest = [r for r in every if r["metadata"]["name"] > after]
        return ResourcePage(rest[:size], rest[size - 1]["metadata"]["name"] if len(rest) > size else "", "7")

    found: list[list[str]] = []
    at: client.ListPosition | None = client.ListPosition()
    while at is not None:
        change()
        page = client.page(read, lambda r: list(r["results"]), at, limit)
        found.append(page.items)
        at = page.next
    return found


@given(st.lists(st.integers(0, 4), max_size=40), st.integers(1, 7), st.integers(1, 9))
def test_pages_together_hold_every_result_once_and_in_order(counts: list[int], limit: int, size: int) -> None:
    every = resources(counts)

    pages = all_of(every, limit, size)

    assert [r for p in pages for r in p] == [r for resource in every for r in resource["results"]]
    assert all(len(p) <= limit for p in pages)


def test_resources_that_come_and_go_neither_repeat_nor_hide_others() -> None:
    every = resources([1] * 6)
    changes = iter(
        [lambda: None, lambda: every.pop(0), lambda: every.insert(0, {"metadata": {"name": "a"}, "results": ["a"]})]
    )

    pages = all_of(every, 2, 100, lambda: next(changes, lambda: None)())

    assert [r for p in pages for r in p] == [f"r{n:03d}.0" for n in range(6)]


def test_one_request_reads_a_bounded_number_of_pages() -> None:
    every = resources([0] * 100 + [1])

    pages = all_of(every, 10, 1)

    assert len(pages) == -(-101 // client.REQUESTS_AT_MOST)
    assert pages[-1] == ["r100.0"]
