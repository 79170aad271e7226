"""The metrics and labels that a PromQL expression names. It reads enough of the language for the chart's own expressions."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

# Labels that Prometheus adds to each target.
OF_TARGETS = frozenset({"instance", "job", "pod"})
_STRING = r'"(?:[^"\\]|\\.)*"'
_TOKEN = re.compile(
    rf"(?P<space>\s+)|(?P<matchers>\{{(?:[^}}\"]|{_STRING})*\}})|(?P<range>\[[^\]]*\])|(?P<string>{_STRING})"
    r"|(?P<number>\d[\w.]*)|(?P<word>[a-zA-Z_:][a-zA-Z0-9_:]*)|(?P<other>.)"
)
_MATCHER = re.compile(rf"([a-zA-Z_][a-zA-Z0-9_]*)\s*(?:=~|!~|!=|=)\s*{_STRING}")
# Words before a list of labels in parentheses.
_LISTS = frozenset({"by", "on", "without", "ignoring", "group_left", "group_right"})
_OPERATORS = frozenset({"and", "or", "unless", "bool", "offset"})


@dataclass(frozen=True)
class Names:
    """What one expression names."""

    # The labels of the matchers, by metric.
    metrics: Mapping[str, frozenset[str]]
    # The labels in lists such as `by (…)`.
    listed: frozenset[str]


def names_in(expression: str) -> Names:
    """Raises: ValueError, for something that this does not read."""
    tokens = [(m.lastgroup or "", m[0]) for m in _TOKEN.finditer(expression) if m.lastgroup != "space"]
    metrics: dict[str, frozenset[str]] = {}
    listed: set[str] = set()
    at = 0
    while at < len(tokens):
        kind, text = tokens[at]
        following = tokens[at + 1] if at + 1 < len(tokens) else ("", "")
        if kind == "word" and text in _LISTS:
            end = next(n for n in range(at, len(tokens)) if tokens[n][1] == ")")
            listed |= {t for k, t in tokens[at + 2 : end] if k == "word"}
            at = end
        elif kind == "word" and text not in _OPERATORS and following[1] != "(" and not _is_aggregation(tokens, at):
            matchers = following[1] if following[0] == "matchers" else "{}"
            metrics[text] = metrics.get(text, frozenset()) | frozenset(_labels(matchers))
        elif kind == "matchers" and (at == 0 or tokens[at - 1][0] != "word"):
            raise ValueError(f"{text} has no metric before it, in: {expression}")
        at += 1
    return Names(metrics, frozenset(listed))


def _is_aggregation(tokens: list[tuple[str, str]], at: int) -> bool:
    """Whether a word is one such as `sum` in `sum by (…) (…)`."""
    return at + 1 < len(tokens) and tokens[at + 1][1] in ("by", "without")


def _labels(matchers: str) -> Iterator[str]:
    inside = matchers[1:-1]
    if _MATCHER.sub("", inside).strip(", "):
        raise ValueError(f"matchers that are not understood: {matchers}")
    yield from _MATCHER.findall(inside)


def unknown(expression: str, exposed: Mapping[str, frozenset[str]]) -> list[str]:
    """What an expression names and no process exposes, as sentences.

    Args:
        exposed: The labels of each metric.
    """
    found = names_in(expression)
    said = [f"no process exposes {m}" for m in found.metrics if m not in exposed]
    for metric, labels in found.metrics.items():
        known = exposed.get(metric, frozenset()) | OF_TARGETS
        said += [f"{metric} has no label {label}" for label in sorted((labels | found.listed) - known)]
    return said
