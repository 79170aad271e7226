"""Reads what selects the records of Erases and Redacts, and what a Redact writes: lists of values, and mounted Secrets. I/O.

Invariants: the content of a list is only in this process and in the memory of its workers. No message contains a value. A list at
a URI is read once in an attempt, so that its digest is that of the values that are searched for.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lethe.base.errors import InputError, TransientError
from lethe.contract.result import RequestResult
from lethe.contract.run import ConditionRef, RestatementRequest
from lethe.files.values import MAX_VALUES, ValueKind, Values, ValueType
from lethe.restatement.group import set_aside
from lethe.restatement.plan import KEY_BYTES_AT_LEAST, values_digest
from lethe.search.columns import RedactableColumn, redactable_columns
from lethe.search.positions import Wanted

from lethe_spark.commit.replacement_files import read_list
from lethe_spark.commit.table_state import Base
from lethe_spark.run.context import digest_key
from lethe_spark.sql.redacting import RowRedaction

VALUES_FOLDER: Final = "LETHE_VALUES_FOLDER"
"""Where the files with values and keys are, in a process whose mounts are elsewhere than the document of the run says."""
_BYTES_OF_A_VALUE: Final = 1024
LIST_BYTES_AT_MOST: Final = MAX_VALUES * _BYTES_OF_A_VALUE


@dataclass
class ValueLists:
    """The lists of the requests of a run."""

    properties: Mapping[str, str]
    """PyIceberg's properties of the catalog."""
    table_location: str
    _content_by_uri: dict[str, bytes] = field(default_factory=dict, repr=False)

    def content(self, request: RestatementRequest, condition: ConditionRef) -> bytes:
        """The list of a condition.

        Raises:
            InputError: `InvalidValues`, `PlaceInTable`: the list at a URI cannot be used.
            TransientError: `SecretNotFound`, `ListNotFound`, `AccessDenied`, `ListUnreadable`.
        """
        uri = condition.values_uri
        if not uri:
            return _in_pod(request, condition)
        if uri not in self._content_by_uri:
            where = f"Restatement {request.name}: {condition.field}.valuesFrom.uri {uri}"
            content = read_list(where, uri, "InvalidValues", self.properties, self.table_location, LIST_BYTES_AT_MOST)
            if len(content) > LIST_BYTES_AT_MOST:
                raise InputError(
                    "InvalidValues",
                    f"{where}: the list has more than {LIST_BYTES_AT_MOST} bytes. Nothing was {request.operation.done}.",
                )
            self._content_by_uri[uri] = content
        return self._content_by_uri[uri]

    def with_digests(
        self, requests: Sequence[RestatementRequest]
    ) -> tuple[tuple[RestatementRequest, ...], dict[str, RequestResult]]:
        """The requests, in their order, with the digests of the values of Erases and Redacts by records.

        Returns:
            Also the results of requests whose list at a URI has changed, by key.

        A digest is empty if the values or the key cannot be read. The chart creates the Secret with the key, and the pods of
        the runs that need it mount this Secret.
        """
        key = digest_key()
        digested = tuple(self._digested(r, key) for r in requests)
        aside: dict[str, RequestResult] = {}
        for before, now in zip(requests, digested, strict=True):
            if (error := _changed(before, now)) is not None:
                aside[now.key] = set_aside(now, error.verdict)
        return digested, aside

    def _digested(self, request: RestatementRequest, key: bytes) -> RestatementRequest:
        if request.rows is None:
            return request
        try:
            digest = values_digest([self.content(request, c) for c in request.conditions], key)
        except (InputError, TransientError):  # raised again for the request alone, when its values are needed
            digest = ""
        return request.model_copy(update={"rows": request.rows.model_copy(update={"values_digest": digest})})


def _in_pod(request: RestatementRequest, condition: ConditionRef) -> bytes:
    where = f"Restatement {request.name}: {condition.field}.valuesFrom"
    secret = (condition.secret, condition.secret_key)
    return read_mounted(condition.values_file, secret, where, "with one value on each line")


def read_mounted(path: str, secret: tuple[str, str], where: str, content: str) -> bytes:
    """The content of a key of a Secret that is mounted into this pod.

    Args:
        secret: The name and the key, for the message. Empty: it is a file.
        where: The Restatement, and its field that names the Secret.
        content: What the Secret should contain, such as "with one value on each line".

    Raises:
        TransientError: `SecretNotFound`.
    """
    folder = os.environ.get(VALUES_FOLDER)
    try:
        return (Path(folder, Path(path).name) if folder else Path(path)).read_bytes()
    except OSError as e:
        name, key = secret
        expected = f"no Secret {name} with the key {key}" if name else f"no file {path}"
        raise TransientError(
            "SecretNotFound",
            f"{where}: found {expected} ({type(e).__name__}). Create it, {content}. The Restatement waits for it.",
        ) from None


def _changed(before: RestatementRequest, now: RestatementRequest) -> InputError | None:
    """The error for a request with a list at a URI, if its values have changed since a run first read them, as far as known."""
    first, found = (r.rows.values_digest if r.rows is not None else "" for r in (before, now))
    if not first or not found or first == found or not any(c.values_uri for c in now.conditions):
        return None
    if first.partition(":")[0] != found.partition(":")[0]:
        return None  # the key is another one, so they cannot be compared
    return InputError(
        "ListChanged",
        f"Restatement {now.name}: spec.rows: the values have changed since they were first read (status.plan.valuesDigest), so "
        f"it is unknown which are meant. Nothing was {now.operation.done}. Create a new Restatement for the new values.",
    )


def redactable(request: RestatementRequest, base: Base) -> tuple[RedactableColumn, ...]:
    """The columns that a request redacts; empty if it redacts none.

    Raises:
        InputError: As `redactable_columns`.
    """
    table, asked = base.iceberg, request.redact.columns if request.redact is not None else ()
    return redactable_columns(asked, request.name, table.schema(), table.spec(), base.field_id, base.facts.name)


def redaction_of(request: RestatementRequest, base: Base) -> RowRedaction:
    """What a Redact writes.

    Raises:
        InputError: As `redactable_columns`. `InvalidHashKey`.
        TransientError: `SecretNotFound`.
    """
    columns, asked = redactable(request, base), request.redact
    assert asked is not None
    if not asked.hash_key_file:
        return RowRedaction(columns)
    where = f"Restatement {request.name}: spec.redact.hashKeyFrom"
    least = f"at least {KEY_BYTES_AT_LEAST} random bytes"
    key = read_mounted(asked.hash_key_file, (asked.secret, asked.secret_key), where, f"with {least}")
    if len(key) < KEY_BYTES_AT_LEAST:
        raise InputError(
            "InvalidHashKey",
            f"{where}: the key {asked.hash_key} has {len(key)} bytes, expected {least}: the values could be guessed. Create a "
            "Restatement with another key. Nothing was redacted.",
        )
    return RowRedaction(columns, key)


def wanted_batches(request: RestatementRequest, base: Base) -> Wanted:
    """The rows of the batches that a Redact names."""
    ids = tuple(sorted(frozenset(request.batch_ids)))
    return Wanted.of(base.field_id, Values(ValueKind(ValueType.STRING), ids))
