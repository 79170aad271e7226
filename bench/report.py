"""The one renderer: tables and plots of a benchmark, made of its JSON document.

    python -m bench.report [NAME...]

Writes the plots and the generated sections of the pages again, from the files in docs/benchmarks, without measuring. The last
section of this module does I/O, the rest is pure.
"""

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from statistics import median as middle
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
YES, NO, NO_DIFFERENCE, UNKNOWN = "yes", "no", "no difference within the spread", "not measured"
SHARES: Final = (50, 95, 99)
MIB: Final = 2.0**20
TICKS: Final = 12  # of a plot with more points, the values are not marked
Part = Mapping[str, Any]
Result = Mapping[str, Any]
Goal = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """A quantity of a result."""

    head: str
    """The head of its column."""
    key: str = "seconds"
    """Where it is in the result, with dots between the names. The median is shown of a spread or a list, the sum of a mapping."""
    unit: float = 1.0
    """What one of the column's unit is in that of the value."""
    per: str = ""
    """The key of a quantity by which it is divided; empty: none."""

    def value(self, result: Result) -> float | None:
        """None: it was not measured."""
        found = _number_at(result, self.key)
        if self.per:
            return ratio(found, _number_at(result, self.per))
        return None if found is None else found / self.unit


SECONDS: Final = Cell("seconds")
BYTES: Final = Cell("bytes", "bytes")


@dataclass(frozen=True)
class View:
    """A table of the results of some parts, and a plot of it."""

    title: str
    parts: tuple[str, ...]
    """If there are several, the part is the first column."""
    rows: tuple[str, ...] = ()
    """Labels of the results: each of their combinations is a row. Without columns, a row has the medians of its results."""
    columns: str = ""
    """A label: each of its values is a column."""
    cells: tuple[Cell, ...] = (SECONDS,)
    plot: str = ""
    """The label of the plot's horizontal axis; empty: no plot."""
    of_part: bool = False
    """Whether the quantities are those of the part itself instead of its results."""
    ends: bool = False
    """Whether the table has only the first and the last result of a part."""
    only_plot: bool = False
    """Whether there is only the plot of what changes over time, because medians would say nothing."""


@dataclass(frozen=True)
class Shares:
    """Percentiles of the lists of seconds that results hold, with a plot of their distribution."""

    title: str
    parts: tuple[str, ...]
    series: Mapping[str, str]
    """The key of each list, by its name."""


# --- values ----------------------------------------------------------------------------------------------------------


def _at(result: Result, key: str) -> Any:
    found: Any = result
    for name in key.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _number_at(result: Result, key: str) -> float | None:
    found = _at(result, key)
    if found is None or "error" in result:
        return None
    if isinstance(found, Mapping):
        return float(found["median"]) if "median" in found else float(sum(found.values()))
    return float(middle(found)) if isinstance(found, Sequence) else float(found)


def median(result: Result | None, quantity: str = "seconds") -> float | None:
    return None if result is None else _number_at(result, quantity)


def find(results: Iterable[Result], **labels: Any) -> Result | None:
    return next((r for r in results if all(r.get(k) == v for k, v in labels.items())), None)


def ratio(one: float | None, other: float | None) -> float | None:
    return None if one is None or not other else one / other


def percentile(values: Sequence[float], share: int) -> float | None:
    """The least value that `share` percent are not above; None of none."""
    ordered = sorted(values)
    return ordered[max(0, -(-share * len(ordered) // 100) - 1)] if ordered else None


def goal(text: str, measured: float | None, limit: float, at_least: bool = False) -> Goal:
    """A goal with what was measured, None where nothing was, and in a word whether it is met."""
    met = UNKNOWN if measured is None else YES if (measured >= limit if at_least else measured <= limit) else NO
    return {"goal": text, "measured": None if measured is None else round(measured, 3), "limit": limit, "met": met}


def no_slower(text: str, ours: Result | None, theirs: Result | None) -> Goal:
    """The goal that one is not slower than the other. A difference within the spread of the rounds is none."""
    found = goal(text, ratio(median(ours), median(theirs)), 1.0)
    if found["met"] == NO and ours and theirs and ours["seconds"]["min"] <= theirs["seconds"]["max"]:
        found["met"] = NO_DIFFERENCE
    return found


def results_of(parts: Mapping[str, Part], name: str) -> Sequence[Result]:
    return parts[name]["results"] if name in parts else ()


# --- Markdown --------------------------------------------------------------------------------------------------------


def section(
    document: Mapping[str, Any], views: Iterable[View | Shares], drawn: Mapping[str, str], folder: str, name: str
) -> str:
    """The generated part of a page. `drawn`: files of plots by title."""
    machine = document["machine"]
    lines = [
        f"`{document['command']}` at commit {machine['commit']}, {machine['cores']} cores "
        f"({machine['processor'] or 'unknown'}), load {machine['load_before'][0]}: [all values]({folder}/{name}.json).",
        "",
        *goals_summary(document["goals"]),
    ]
    for view in views:
        parts = _measured(document, view)
        if parts:
            lines += [f"### {view.title}", ""]
            if view.title in drawn:
                lines += [f"![{view.title}]({folder}/{drawn[view.title]})", ""]
            lines += [*_sizes(parts), *_problems(parts)]
            if isinstance(view, Shares) or not view.only_plot:
                lines += [*table(*rendered(view, parts)), ""]
    return "\n".join(lines).rstrip() + "\n"


def goals_summary(goals: Sequence[Goal]) -> list[str]:
    """How many goals are met, and each one that is not."""
    if not goals:
        return []
    missed = [g for g in goals if g["met"] != YES]
    text = f"Goals that are met: {len(goals) - len(missed)} of {len(goals)}.{' Missed:' if missed else ''}"
    rows = [f"- {g['goal']}: goal {g['limit']:,.10g}, measured {number(g['measured']) or 'nothing'}" for g in missed]
    return [text, "", *rows, *([""] if rows else [])]


def _measured(document: Mapping[str, Any], view: View | Shares) -> dict[str, Part]:
    return {p: document["parts"][p] for p in view.parts if p in document["parts"]}


def _sizes(parts: Mapping[str, Part]) -> list[str]:
    """The size of the table of each part."""
    texts = []
    for name, size in ((name, part["table"]) for name, part in parts.items() if "table" in part):
        order = {True: ", sorted", False: ", unsorted", None: ""}[size.get("sorted")]
        mib = f", {size['bytes'] / MIB:,.0f} MiB" if "bytes" in size else ""
        text = f"{size['rows']:,} rows, {size['batches']:,} batches, {size['files']:,} files{mib}{order}."
        texts.append(f"{name}: {text}" if len(parts) > 1 else text)
    return [" ".join(texts), ""] if texts else []


def _problems(parts: Mapping[str, Part]) -> list[str]:
    results = [r for part in parts.values() for r in part["results"]]
    failed = dict.fromkeys(str(r[key])[:120] for r in results for key in ("error", "skipped") if key in r)
    return [f"**Not measured**: {'; '.join(failed)}.", ""] if failed else []


def rendered(view: View | Shares, parts: Mapping[str, Part]) -> tuple[list[str], list[list[str]]]:
    """The head and the rows of a table."""
    several = len(view.parts) > 1
    head = ["part"] if several else []
    if isinstance(view, Shares):
        head += ["seconds", *(f"{share} %" for share in SHARES), "most"]
        rows = [
            [*([name] if several else []), label, *_percentiles(seconds)]
            for name, part in parts.items()
            for r in part["results"]
            for label, key in view.series.items()
            if (seconds := _at(r, key))
        ]
        return head, rows
    found = [(name, r) for name, part in parts.items() for r in _shown(view, part)]
    labels = [(*([name] if several else []), *(_text(r.get(label, "")) for label in view.rows)) for name, r in found]
    head += view.rows
    if not view.columns:
        head += [c.head for c in view.cells]
        of_label: dict[tuple[str, ...], list[Result]] = {}
        for label, (_, r) in zip(labels, found, strict=True):
            of_label.setdefault(label, []).append(r)
        return head, [[*label, *(number(_middle(c, of)) for c in view.cells)] for label, of in of_label.items()]
    values = list(dict.fromkeys(r[view.columns] for _, r in found if view.columns in r))
    heads = [(c, v) for c in view.cells for v in values]
    head += [_text(v) if len(view.cells) == 1 else f"{c.head}, {_text(v)}" for c, v in heads]
    by_label = {(label, r.get(view.columns)): r for label, (_, r) in zip(labels, found, strict=True)}
    rows = [
        [*label, *(number(c.value(by_label.get((label, v), {}))) for c, v in heads)] for label in dict.fromkeys(labels)
    ]
    kept = [n for n in range(len(head)) if any(row[n] for row in rows)]
    return [head[n] for n in kept], [[row[n] for n in kept] for row in rows]


def _middle(cell: Cell, results: Iterable[Result]) -> float | None:
    values = [v for r in results if (v := cell.value(r)) is not None]
    return middle(values) if values else None


def _shown(view: View, part: Part) -> Sequence[Result]:
    if view.of_part:
        return [part]
    results: Sequence[Result] = part["results"]
    return [results[0], results[-1]] if view.ends and len(results) > 1 else results


def _percentiles(values: Sequence[float]) -> list[str]:
    return [*(number(percentile(values, share)) for share in SHARES), number(max(values, default=None))]


def _text(value: Any) -> str:
    return (
        {True: "yes", False: "no"}[value]
        if isinstance(value, bool)
        else f"{value:,}"
        if isinstance(value, int)
        else str(value)
    )


def number(value: float | None) -> str:
    if value is None:
        return ""
    if float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:.3f}" if abs(value) < 1 else f"{value:.2f}" if abs(value) < 100 else f"{value:,.0f}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = (f"| {' | '.join(row)} |" for row in rows)
    return [f"| {' | '.join(head)} |", f"|{'|'.join('---' for _ in head)}|", *lines]


def begin(suite: str) -> str:
    return f"<!-- generated by bench.{suite}: begin -->"


def end(suite: str) -> str:
    return f"<!-- generated by bench.{suite}: end -->"


# --- I/O: plots and pages --------------------------------------------------------------------------------------------


def draw(document: Mapping[str, Any], views: Iterable[View | Shares], name: str, out: Path) -> dict[str, str]:
    """Write a plot for each view that has one: SVG, equal bytes for equal figures. Returns: file names by title."""
    os.environ.setdefault("MPLBACKEND", "Agg")
    import matplotlib
    import matplotlib.pyplot as plt

    matplotlib.rcParams.update({"svg.hashsalt": "lethe", "svg.fonttype": "path", "font.size": 9})
    drawn = {}
    for view in views:
        parts = _measured(document, view)
        if not parts or (isinstance(view, View) and not view.plot):
            continue
        figure, axes = plt.subplots(
            1, len(parts), figsize=(4.5 * len(parts) + 1, 3.4), squeeze=False, layout="constrained"
        )
        for axis, (part_name, part) in zip(axes[0], parts.items(), strict=True):
            if isinstance(view, Shares):
                _distribution(axis, view, part)
            else:
                _lines(axis, view, part)
            axis.set_title(part_name if len(parts) > 1 else "", loc="left")
            axis.set_ylim(bottom=0)
            axis.grid(alpha=0.3)
            if axis.get_legend_handles_labels()[1]:
                axis.legend(fontsize=7)
        file = f"{name}-{re.sub('[^a-z0-9]+', '-', view.title.lower()).strip('-')}.svg"
        figure.savefig(out / file, format="svg", metadata={"Date": None})
        plt.close(figure)
        drawn[view.title] = file
    return drawn


def _lines(axis: Any, view: View, part: Part) -> None:
    """A line through the first quantity for each combination of the other labels."""
    lines: dict[tuple[str, ...], list[tuple[float, float]]] = {}
    others = [label for label in (*view.rows, view.columns) if label and label != view.plot]
    for r in part["results"]:
        value = view.cells[0].value(r)
        if value is not None and view.plot in r:
            lines.setdefault(tuple(_text(r.get(o, "")) for o in others), []).append((r[view.plot], value))
    ticks = sorted({x for points in lines.values() for x, _ in points})
    for label, points in lines.items():
        marker = "o" if len(points) <= TICKS else None
        if view.only_plot:  # a line over time ends where there is nothing to measure
            points = list((dict.fromkeys(ticks, float("nan")) | dict(points)).items())
        axis.plot(*zip(*sorted(points), strict=True), marker=marker, label=", ".join(filter(None, label)) or None)
    if len(ticks) <= TICKS:
        if ticks and ticks[0] > 0:
            axis.set_xscale("log")
        axis.set_xticks(ticks, [f"{x:,}" for x in ticks], rotation=30)
        axis.minorticks_off()
    axis.set_xlabel(view.plot)
    axis.set_ylabel(view.cells[0].head)


def _distribution(axis: Any, view: Shares, part: Part) -> None:
    for r in part["results"]:
        for label, key in view.series.items():
            ordered = sorted(_at(r, key) or ())
            axis.plot(ordered, [100 * (n + 1) / len(ordered) for n in range(len(ordered))], label=label)
    axis.set_xlabel("seconds")
    axis.set_ylabel("%")
    axis.set_xlim(left=0)


def insert(page: Path, suite: str, text: str) -> None:
    """Put the generated section between its markers; a page without them gets both at its end."""
    whole = page.read_text() if page.exists() else "# Benchmarks\n"
    if begin(suite) not in whole or end(suite) not in whole:
        whole = f"{whole.rstrip()}\n\n{begin(suite)}\n{end(suite)}\n"
    before, after = whole.split(begin(suite))[0], whole.split(end(suite))[1]
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(f"{before}{begin(suite)}\n\n{text}\n{end(suite)}{after}")


def write(document: Mapping[str, Any], views: Sequence[View | Shares], name: str, out: Path, page: str) -> Path:
    """Write plots beside the JSON document, and the section of its page. `page`: "" for the one named as the folder."""
    markdown = out.with_name(page or f"{out.name}.md")
    insert(markdown, name, section(document, views, draw(document, views, name, out), out.name, name))
    return markdown


def main(*names: str) -> None:
    out = ROOT / "docs/benchmarks"
    known: Sequence[str] = names or [f.stem for f in sorted(out.glob("*.json"))]
    load: Callable[[str], Any] = lambda name: getattr(import_module(f"bench.{name}"), "SUITE", None)  # noqa: E731
    for name, suite in ((name, load(name)) for name in known):
        if suite is not None:
            document = json.loads((out / f"{name}.json").read_text())
            print(write(document, suite.views, name, out, suite.page))


if __name__ == "__main__":
    import_module("bench.report").main(*sys.argv[1:])  # the benchmarks import that module, with classes of its own
