"""The subject that `lethe erase` or `lethe redact` names with --everywhere, and the Datasets that it selects.

Pure, apart from the last functions.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, Final, TypeVar

import click
from lethe.base import names
from lethe.base.errors import InputError
from lethe.contract.restatement import Requester
from lethe.contract.settings import LabelOperator
from lethe.contract.vacuum_policy import Selector
from lethe.kube import DATASETS, SELF_REVIEWS, Kube, NotFound, RequestRefused
from lethe_operator.resources.manifests import SubjectValues
from lethe_operator.resources.vacuum_policy import selects

from lethe_kubectl.target import Connection

F = TypeVar("F", bound=Callable[..., Any])

_SET: Final = re.compile(r"(\S+)\s+(in|notin)\s*\(([^()]*)\)")
_COMMA: Final = re.compile(r",(?![^(]*\))")
_KEY: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?")
_LABEL: Final = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")


@dataclass(frozen=True)
class NamedIdentity:
    """One --subject of the command line."""

    name: str
    value: str | None = None
    """None: its values are in a file or a Secret."""


@dataclass(frozen=True)
class SubjectOptions:
    """What the options of `subject_options` say."""

    everywhere: bool
    subjects: Sequence[str]
    selector: str
    values: IO[bytes] | None
    values_from: str

    def are_meant(self, chosen: bool, has_dataset: bool) -> bool:
        """Whether they name a subject in several Datasets, and no Dataset.

        Args:
            chosen: A Dataset, batches or records of one are named.
            has_dataset: A Dataset is named.

        Raises:
            UsageError: The options contradict each other.
        """
        if self.everywhere != bool(self.subjects):
            raise click.UsageError("--everywhere and --subject belong together.")
        if self.everywhere and chosen:
            raise click.UsageError(
                "--everywhere takes no DATASET, batches or --column. Choose Datasets with --selector."
            )
        if not self.everywhere and (not has_dataset or self.selector):
            raise click.UsageError("Name a DATASET, or a --subject with --everywhere.")
        return self.everywhere


def subject_options(does: str) -> Callable[[F], F]:
    """The options that name a subject in several Datasets, and those with its values.

    Args:
        does: Such as "Erase a subject from".
    """
    options = (
        click.option(
            "--everywhere", is_flag=True, help=f"{does} all Datasets of the namespace, or those of --selector."
        ),
        click.option(
            "--subject",
            "subjects",
            multiple=True,
            help="With --everywhere: the name of an identity of Datasets, such as customer. Repeatable. NAME=VALUE also gives "
            "the value, which then is in the history of your shell.",
        ),
        click.option(
            "--selector",
            "-l",
            default="",
            help="With --everywhere: labels of Datasets, such as app=shop. Default: all.",
        ),
        click.option(
            "--values",
            type=click.File("rb"),  # as text, a carriage return within a value would end a line
            help="A file with the values, one per line; - reads standard input. With several --subject, a line is NAME=VALUE.",
        ),
        click.option(
            "--values-from",
            default="",
            help="SECRET/KEY of a Secret that has the values, one per line. With several --subject, SECRET: its keys are their "
            "names.",
        ),
    )

    def with_options(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return with_options


def named_identities(words: Sequence[str]) -> tuple[NamedIdentity, ...]:
    """Parse NAME and NAME=VALUE.

    Raises:
        UsageError: It has no name, a value has several lines, or a name occurs twice. The message has no value.
    """
    found: list[NamedIdentity] = []
    for word in words:
        name, given, value = word.partition("=")
        if not name or (given and not value.strip()):
            raise click.UsageError("--subject is NAME, or NAME=VALUE.")
        if "\n" in value:  # each line would be a value
            raise click.UsageError(
                f"--subject {name}: the value has several lines. Put values into the file of --values."
            )
        if name in (f.name for f in found):
            raise click.UsageError(f"--subject names {name} twice. Put several values into the file of --values.")
        found.append(NamedIdentity(name, value if given else None))
    return tuple(found)


def values_of(identities: Sequence[NamedIdentity], content: str | None) -> dict[str, str]:
    """The values of each identity, one per line, as `lines_of` divides them.

    Args:
        identities: Of the command line.
        content: Of the file with the values: one per line, or NAME=VALUE if several identities have none on the command line.
            None: there is no file.

    Raises:
        UsageError: The values are needed and there is no file, or the other way round.
        InputError: `NoValues`, `InvalidValues`. The message has no value.
    """
    wanted = [i.name for i in identities if i.value is None]
    if content is not None and not wanted:
        raise click.UsageError("--values is for a --subject without a value.")
    if content is None and wanted:
        raise click.UsageError(f"--subject {wanted[0]} needs --values or --values-from.")
    lines: dict[str, list[str]] = {i.name: [i.value] if i.value is not None else [] for i in identities}
    for number, line in enumerate(names.lines_of(content or ""), 1):
        if not line.strip():
            continue
        name, text = (wanted[0], line) if len(wanted) == 1 else line.split("=", 1) if "=" in line else ("", "")
        if name not in wanted:
            raise InputError(
                "InvalidValues",
                f"line {number} of the file of --values does not begin with the name of a --subject and =. With several of "
                f"them, write NAME=VALUE. The names are {', '.join(wanted)}.",
            )
        lines[name].append(text)
    for name, values in lines.items():
        if not any(v.strip() for v in values):
            raise InputError(
                "NoValues", f"the file of --values has no value of {name}. Write one value per line."
            ) from None
    return {name: "".join(f"{v}\n" for v in values) for name, values in lines.items()}


def stored_values(identities: Sequence[NamedIdentity], values_from: str) -> tuple[SubjectValues, ...]:
    """Where the values are in an existing Secret.

    Args:
        identities: Of the command line.
        values_from: SECRET/KEY for one identity; SECRET if its keys are the names of the identities.

    Raises:
        UsageError: The options contradict each other.
    """
    secret, _, key = values_from.partition("/")
    if any(i.value is not None for i in identities):
        raise click.UsageError("With --values-from, no --subject has a value.")
    if key and len(identities) > 1:
        raise click.UsageError(
            "With several --subject, --values-from is SECRET: its keys are the names of the identities."
        )
    return tuple(SubjectValues(i.name, secret, key or i.name) for i in identities)


def selector_of(text: str) -> dict[str, Any]:
    """A selector of labels, as `kubectl -l` takes it, in the form of the API. Empty selects all.

    Raises:
        UsageError: The message quotes the part that is not valid.
    """
    labels: dict[str, str] = {}
    requirements: list[dict[str, Any]] = []
    for part in (p.strip() for p in _COMMA.split(text) if p.strip()):
        key, operator, values = _requirement(part)
        if not _KEY.fullmatch(key) or not all(map(_LABEL.fullmatch, values)):
            raise click.UsageError(f"--selector: {part!r} is not a selector of labels, such as app=shop or tier!=test.")
        if operator is None and labels.setdefault(key, values[0]) == values[0]:
            continue
        operator = operator or LabelOperator.IN
        with_values = operator in (LabelOperator.IN, LabelOperator.NOT_IN)
        requirements.append({"key": key, "operator": operator.value} | ({"values": values} if with_values else {}))
    return {
        **({"matchLabels": labels} if labels else {}),
        **({"matchExpressions": requirements} if requirements else {}),
    }


def _requirement(part: str) -> tuple[str, LabelOperator | None, list[str]]:
    """Key, operator and values; None: the label must be equal to the only value."""
    if match := _SET.fullmatch(part):
        key, operator, values = match.groups()
        return (
            key,
            LabelOperator.IN if operator == "in" else LabelOperator.NOT_IN,
            [v.strip() for v in values.split(",")],
        )
    if "!=" in part:
        key, _, value = part.partition("!=")
        return key.strip(), LabelOperator.NOT_IN, [value.strip()]
    if "=" in part:
        key, _, value = part.partition("=")
        return key.strip(), None, [value.removeprefix("=").strip()]
    if part.startswith("!"):
        return part[1:].strip(), LabelOperator.DOES_NOT_EXIST, []
    return part, LabelOperator.EXISTS, []


def require_declared(at: Connection, spec: Mapping[str, Any]) -> None:
    """Require that a selected Dataset declares each identity: a misspelt name would erase nothing.

    A user who may not list Datasets is not refused.

    Raises:
        InputError: `UnknownIdentity`.
    """
    try:
        datasets = at.kube.list(DATASETS, at.namespace)
    except RequestRefused:
        return
    selector = Selector.model_validate(spec["datasetSelector"])
    selected = [d for d in datasets if selects(selector, d["metadata"].get("labels") or {})]
    known = {str(i["name"]): None for d in selected for i in (d.get("spec") or {}).get("identities") or ()}
    subject = spec["subject"]
    for identity in subject.get("anyOf") or [subject]:
        name = identity["identity"]
        if name not in known:
            raise InputError(
                "UnknownIdentity",
                f"{names.unknown('identity', name, known)}. The {len(selected)} selected Datasets of namespace {at.namespace} "
                f"declare {', '.join(sorted(known)) or 'none'} in spec.identities.",
            )


def requester(kube: Kube) -> Requester | None:
    """The user of this connection; None: the API server, such as that of `lethe local`, does not say."""
    try:
        user = kube.review(SELF_REVIEWS, "", {}).get("userInfo") or {}
    except (NotFound, RequestRefused):
        return None
    return Requester.of(str(user.get("username") or ""), [str(g) for g in user.get("groups") or ()])
