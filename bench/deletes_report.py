"""Figures of the kinds of deletes as tables. Pure."""

from collections.abc import Mapping
from typing import Any

from bench.deletes_kinds import NOTHING_DELETED, PLAIN
from bench.page import find, heading, median, number, picture, ratio, seconds, table


def goals(_parts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """None: they tell what to choose when, and nothing is promised of it."""
    return []


def section(document: Mapping[str, Any], drawn: Mapping[str, str], folder: str) -> str:
    """The generated part of the page, in Markdown. `drawn`: plots by part."""
    parts = document["parts"]
    lines = heading(document, folder, "deletes.json")
    if parts:
        size = next(iter(parts.values()))["table"]
        lines += [
            f"A table of {size['rows']:,} rows in {size['batches']:,} batches and {size['files']:,} files, sorted.",
            "",
        ]
    if "reverts" in parts:
        lines += ["### Taking batches back", "", *picture(drawn, "reverts", folder), *_reverts(parts["reverts"]), ""]
    if "reads" in parts:
        lines += ["### Reading", "", *picture(drawn, "reads", folder), *_reads(parts["reads"]), ""]
    if "vacuums" in parts:
        lines += ["### Vacuum", "", *_vacuums(parts["vacuums"])]
    return "\n".join(lines).rstrip() + "\n"


def _reverts(part: Mapping[str, Any]) -> list[str]:
    rows = []
    for r in part["results"]:
        alone = median(find(part["results"], kind="Ledger", batches=r["batches"]))
        written = median(r, "bytes")
        size = "" if written is None else f"{written:,.0f}"
        rows.append((r["kind"], f"{r['batches']:,}", *seconds(r), number(ratio(median(r), alone)), size))
    head = ("spec.deletes", "batches", "min s", "median s", "max s", "of Ledger", "median bytes written")
    return table(head, rows)


def _reads(part: Mapping[str, Any]) -> list[str]:
    plain = median(find(part["results"], kind=NOTHING_DELETED, reader=PLAIN))
    rows = []
    for r in sorted(part["results"], key=lambda r: r["reader"]):
        rows.append((r["reader"], r["kind"], f"{r['rows']:,}", *seconds(r), number(ratio(median(r), plain))))
    told = f"All rows and columns, with {part['deleted']:,} batches taken back, evenly spread."
    head = ("read by", "spec.deletes", "rows that it sees", "min s", "median s", "max s", "of plain, nothing deleted")
    return [told, "", *table(head, rows)]


def _vacuums(part: Mapping[str, Any]) -> list[str]:
    rows = []
    for r in part["results"]:
        size = median(r, "bytes")
        rows.append((r["kind"], *seconds(r), "" if size is None else f"{size:,.0f}"))
    told = f"Of {part['deleted']:,} batches, evenly spread, without the expiry of snapshots."
    return [told, "", *table(("spec.deletes", "min s", "median s", "max s", "bytes of files written anew"), rows)]
