"""Speaks to the gateway: asks for resources, batches and erasures, creates Restatements, uploads batches. I/O: HTTP, and files.

Every request may be repeated: the gateway opens the same upload again, the store creates each object once, and completing twice
changes nothing. So an interrupted upload goes on where it ended when the same call is made again. A Restatement has its name, or
one that is made from its content, and so is created once.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, TypeAlias
from urllib.parse import quote

import requests

from lethe.base.errors import InputError, TransientError
from lethe.buffer.batch_rows import BUFFERED
from lethe.buffer.upload import LocalFile, data_files
from lethe.contract.status import NOT_CARRIED_OUT
from lethe.ledger.ledger import BatchState

ATTEMPTS: Final = 6
AT_ONCE: Final = 4
PARTS_AT_ONCE: Final = 64
HASHED_BYTES: Final = 64 * 1024 * 1024
CONNECT_SECONDS: Final = 10
READ_SECONDS: Final = 120
PAGE: Final = 1000
"""The largest page of a list that the gateway gives."""
LOOK_SECONDS: Final = 2
"""Between two looks at a Restatement or a batch that somebody waits for."""
_NOT_THERE_YET: Final = ("NotFound", "NoTable", "NotTracked")
"""Problems of a batch that may still arrive. The run of the first batch makes the table, and then the table of batches."""
_FORBIDDEN: Final = 403
_THERE: Final = (409, 412)
"""The object is there already; completing the upload compares it."""
_PIECE: Final = 1024 * 1024
_LONGEST_SECONDS: Final = 300.0
"""The longest Retry-After that is obeyed. With a longer one, the call fails at once."""
OnBytes: TypeAlias = Callable[[int], object]
Document: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class _Look:
    """What is known now about something that somebody waits for."""

    said: str
    """In words, for the message of a wait that takes too long."""
    reached: Document | None = None
    """What was waited for. None: not yet."""


@dataclass(frozen=True)
class Uploaded:
    """A batch that is complete in the buffer."""

    batch_id: str
    files: int
    bytes: int
    """The size of all files."""
    checked: bool
    """Whether the gateway compared the files with the table."""


class GatewayProblem(InputError):
    """A problem that the gateway reports: the user has to change something. `reason` is its type, such as BatchRefused.

    A URL, token or spec that cannot be sent is one, too: InvalidRequest.
    """

    def __init__(self, reason: str, message: str, status: int, errors: Sequence[Mapping[str, str]] = ()) -> None:
        super().__init__(reason, message)
        self.status = status
        """The HTTP status of the answer; 0: nothing could be sent."""
        self.errors = tuple(errors)
        """What is wrong, each with `field`, `message`, and of a body the `pointer`, such as `#/spec/operation`."""


class GatewayClient:
    """Speaks to the gateway for the owner of a token. Threads may share it. Use it as a context manager, or call `close`.

    ```python
    with lethe.GatewayClient("https://lethe.example.org", token) as gateway:
        gateway.put("flights", "2026-03-03", "out/2026-03-03")
        refused = list(gateway.batches("flights", states=["refused"]))
    ```

    Answers are dictionaries with the fields of the [OpenAPI document](reference/gateway.openapi.json). A list is an iterator that
    asks for each page when it comes to it. While the gateway or what is behind it is away, and when it answers that there are too
    many requests, a request is repeated a few times, as the gateway asks.

    Every method raises GatewayProblem with what the gateway reports, and TransientError if it, or what is behind it, stays away:
    IndexBuilding, CatalogAway and others, or `GatewayAway` without an answer.
    """

    def __init__(
        self, url: str, token: str | Callable[[], str], namespace: str = "default", ca_file: str | None = None
    ) -> None:
        """Create `GatewayClient`.

        Args:
            url: Of the gateway.
            token: Of the cluster, or a function that returns a current one: it is called for each request.
            namespace: Of the Datasets and Restatements.
            ca_file: The certificates to trust, in PEM; None: the system's.
        """
        self._root = f"{url.rstrip('/')}/v1/namespaces"
        self._base = f"{self._root}/{_segment(namespace)}"
        self._token = token if callable(token) else lambda: token
        self._verify: str | bool = ca_file or True
        self._idle: list[requests.Session] = []
        """Sessions that no thread uses now."""

    def __enter__(self) -> "GatewayClient":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections of all threads. An incomplete upload goes on when `put` is called again."""
        while self._idle:
            self._idle.pop().close()

    # --- resources ---

    def namespaces(self) -> Iterator[str]:
        """The namespaces that the caller may see.

        Raises:
            GatewayProblem: What the gateway reports.
            TransientError: The gateway is away.
        """
        return self._items(self._root)

    def datasets(self) -> Iterator[Document]:
        """The Datasets of the namespace, by name.

        Raises:
            GatewayProblem: What the gateway reports.
            TransientError: The gateway is away.
        """
        return self._items(f"{self._base}/datasets")

    def dataset(self, name: str) -> Document:
        """One Dataset: waiting batches, tombstones, conditions, the vacuum with its plan, and runs.

        Raises:
            InputError: `InvalidName`.
            GatewayProblem: What the gateway reports.
            TransientError: The gateway is away.
        """
        return self._call("GET", self._of(name))

    def runs(self, dataset: str = "", active: bool = False) -> Iterator[Document]:
        """Runs: the active ones with their progress, and the last few of each Dataset and kind.

        Args:
            dataset: Only of this one.
            active: Only runs that have not ended.

        Raises:
            InputError: `InvalidName`.
            GatewayProblem: What the gateway reports.
            TransientError: The gateway is away.
        """
        return self._items(f"{self._of(dataset) if dataset else self._base}/runs", active=active)

    def vacuums(self, decision: str = "") -> Iterator[Document]:
        """What is decided about the next vacuum of each Dataset, and its plan. `decision` selects, such as NeedsApproval.

        Raises:
            GatewayProblem: What the gateway reports.
            TransientError: The gateway is away.
        """
        return self._items(f"{self._base}/vacuums", decision=decision)

    def vacuum_policies(self) -> Iterator[Document]:
        """The VacuumPolicies of the namespace.

        Raises:
            GatewayProblem: What the gateway reports.
            TransientError: The gateway is away.
        """
        return self._items(f"{self._base}/vacuumpolicies")

    # --- batches and erasures ---

    def batches(
        self,
        dataset: str,
        *,
        states: Sequence[str] = (),
        since: datetime | None = None,
        until: datetime | None = None,
        id_prefix: str = "",
        restatement: str = "",
    ) -> Iterator[Document]:
        """The batches of a Dataset, newest first by the time of their state.

        Args:
            dataset: The name of the Dataset.
            states: Only these: promoted, reverted, replaced, erased, refused, buffered.
            since: Only batches that reached their state at this time or later (aware datetime).
            until: Only batches that reached their state before this time.
            id_prefix: Only ids that begin with it.
            restatement: Only what this Restatement reverted, replaced, erased or added.

        Raises:
            InputError: `InvalidName`.
            GatewayProblem: What the gateway reports.
            TransientError: The gateway is away.
        """
        return self._items(
            f"{self._of(dataset)}/batches",
            state=list(states),
            since=since.isoformat() if since else None,
            until=until.isoformat() if until else None,
            idPrefix=id_prefix,
            restatement=restatement,
        )

    def batch(self, dataset: str, batch_id: str) -> Document:
        """One batch with its `history`: promoted, refused or taken back, by which Restatement and why, purged, and erased.

        Raises:
            InputError: `InvalidName`.
            GatewayProblem: What the gateway reports.
            TransientError: The gateway is away.
        """
        return self._call("GET", f"{self._of(dataset)}/batches/{_segment(batch_id)}")

    def promoted(self, dataset: str, batch_id: str) -> Document | None:
        """The batch if it is promoted, as `batch` returns it. None: it waits in the buffer, or has not arrived.

        Raises:
            InputError: `NotPromoted`, with why: it was refused, is held by a check, or was taken back; InvalidName.
            GatewayProblem: What the gateway reports.
            TransientError: The gateway is away.
        """
        return self._look_at_batch(dataset, batch_id).reached

    def wait_for_batch(self, dataset: str, batch_id: str, seconds: float = 600) -> Document:
        """Wait until a batch is promoted, and return it as `batch` does.

        Args:
            dataset: The name of the Dataset.
            batch_id: The id of the batch. It may arrive later.
            seconds: How long to wait at most.

        Raises:
            InputError: `NotPromoted`, with why: it was refused, is held by a check, or was taken back; `NotTracked`, if the
                Dataset has no table of batches and will have none; InvalidName.
            GatewayProblem: What the gateway reports.
            TransientError: `NotPromotedYet`: call again to wait. Or the gateway is away.
        """
        return _waited(lambda: self._look_at_batch(dataset, batch_id), "NotPromotedYet", seconds)

    def _look_at_batch(self, dataset: str, batch_id: str) -> _Look:
        said = f"batch {batch_id} of dataset/{dataset}"
        try:
            document = self.batch(dataset, batch_id)
        except GatewayProblem as e:
            if e.reason not in _NOT_THERE_YET:
                raise
            found = self.dataset(dataset)  # a Dataset that does not exist is not waited for
            if not found.get("tracksBatches", True):
                raise InputError(
                    "NotTracked",
                    f"{said} cannot be waited for: spec.batchTracking.enabled of the Dataset is false, so no table says "
                    "whether a batch is promoted. Set it to true, or do not wait.",
                ) from e
            return _Look(f"{said} is not known yet: {e.message}")
        state = document["state"]
        said = f"{said} is {state}"
        if state in (BUFFERED, BatchState.PROMOTED):
            return _Look(said, document if state == BatchState.PROMOTED else None)
        by = document.get("restatement")
        why = [document.get("refusalReason"), document.get("refusalMessage"), f"by Restatement {by}" if by else None]
        raise InputError("NotPromoted", f"{said}: {' '.join(w for w in why if w)}")

    def erasures(self, dataset: str, open_only: bool = False) -> Iterator[Document]:
        """The erasures in the ledger of a Dataset. `open_only`: only those that are not verified.

        Raises:
            InputError: `InvalidName`.
            GatewayProblem: What the gateway reports.
            TransientError: The gateway is away.
        """
        return self._items(f"{self._of(dataset)}/erasures", open=open_only)

    def erasure(self, dataset: str, restatement: str) -> list[Document]:
        """The erasures of one Restatement with their records. More than one, if it was created again with another spec.

        Raises:
            InputError: `InvalidName`.
            GatewayProblem: What the gateway reports.
            TransientError: The gateway is away.
        """
        return list(self._call("GET", f"{self._of(dataset)}/erasures/{_segment(restatement)}")["items"])

    # --- Restatements ---

    def restatements(self, dataset: str = "", phase: str = "") -> Iterator[Document]:
        """The Restatements of the namespace, by name; only of this Dataset, and only in this phase.

        Raises:
            GatewayProblem: What the gateway reports.
            TransientError: The gateway is away.
        """
        return self._items(f"{self._base}/restatements", dataset=dataset, phase=phase)

    def restatement(self, name: str) -> Document:
        """One Restatement: how far it is, what its commit did, and whether the bytes are gone.

        Raises:
            InputError: `InvalidName`.
            GatewayProblem: What the gateway reports.
            TransientError: The gateway is away.
        """
        return self._call("GET", f"{self._base}/restatements/{_segment(name)}")

    def restate(
        self, spec: Mapping[str, Any], name: str = "", values: Mapping[str, Sequence[str]] | None = None
    ) -> Document:
        """Create a Restatement, and return it as `restatement` does. The same call again changes nothing.

        Args:
            spec: As in YAML: `{"datasetRef": {"name": "flights"}, "operation": "Revert", "batchIds": ["2026-03-03"]}`. To erase
                a subject: `{"datasetSelector": {}, "operation": "Erase"}`, with `values`.
            name: Empty: made from the spec. With `values`, it is required.
            values: What names the subject, by identity: `{"customer": ["ana@example.org"]}`. They become a Secret.

        Raises:
            GatewayProblem: Rejected, with what the API server says; `AlreadyExists`, if one of the name has another spec.
            TransientError: The gateway is away.
        """
        listed = {"values": {k: list(v) for k, v in values.items()}} if values else {}
        return self._call("POST", f"{self._base}/restatements", {"name": name, "spec": dict(spec), **listed})

    def restated(self, restatement: str) -> Document | None:
        """The Restatement if it is committed. None: it goes on.

        Raises:
            InputError: `NotRestated`, with why: it failed, was cancelled or rolled back, or cannot go on; InvalidName.
            GatewayProblem: What the gateway reports.
            TransientError: The gateway is away.
        """
        return self._look_at_restatement(restatement).reached

    def wait(self, restatement: str, seconds: float = 600) -> Document:
        """Wait for the commit of a Restatement, and return it.

        Args:
            restatement: Its name.
            seconds: How long to wait at most.

        Raises:
            InputError: `NotRestated`, with why: it failed, was cancelled or rolled back, or cannot go on; InvalidName.
            GatewayProblem: What the gateway reports.
            TransientError: `NotRestatedYet`: it goes on, call again to wait. Or the gateway is away.
        """
        return _waited(lambda: self._look_at_restatement(restatement), "NotRestatedYet", seconds)

    def _look_at_restatement(self, restatement: str) -> _Look:
        document = self.restatement(restatement)
        phase, conditions = document.get("phase"), {c["type"]: c for c in document["conditions"]}
        said = f"restatement/{restatement} is {phase or 'Pending'}"
        if ready := conditions.get("Ready"):
            said += f": {ready.get('reason') or ''} {ready.get('message') or ''}".rstrip()
        if phase in NOT_CARRIED_OUT or conditions.get("Stalled", {}).get("status") == "True":
            raise InputError("NotRestated", said)
        return _Look(said, document if phase == "Succeeded" else None)

    # --- uploads ---

    def uploads(self, dataset: str) -> Iterator[Document]:
        """The uploads of a Dataset that are open or were completed lately.

        Raises:
            InputError: `InvalidName`.
            GatewayProblem: What the gateway reports.
            TransientError: The gateway is away.
        """
        return self._items(f"{self._of(dataset)}/uploads")

    def put(
        self,
        dataset: str,
        batch_id: str,
        folder: str | Path,
        on_bytes: OnBytes = lambda _: None,
        reference: str = "",
    ) -> Uploaded:
        """Upload the data files of a folder as one batch, and complete it. The same batch again changes nothing.

        Files are sent with their SHA-256: directly to the store, or through the gateway if the store has no URLs for that.

        Args:
            dataset: The name of the Dataset.
            batch_id: The id of the batch.
            folder: Files whose names begin with `_` or `.` are left out.
            on_bytes: Called with numbers of bytes as they are sent, from several threads.
            reference: The id of the run that delivers the batch, such as of a DAG, by which `lethe revert --reference` takes
                back all that it delivered; "": none.

        Raises:
            GatewayProblem: Such as BatchRefused, BatchIdUsed, UploadConflict.
            InputError: NoFolder, NoDataFiles, StoreRefused.
            TransientError: The gateway is away.
        """
        root = Path(folder).resolve()
        if not root.is_dir():
            raise InputError("NoFolder", f"{root} is not a folder. Name the folder that holds the files of the batch.")
        files = data_files(
            LocalFile(p.relative_to(root).as_posix(), p.stat().st_size) for p in root.rglob("*") if p.is_file()
        )
        if not files:
            raise InputError("NoDataFiles", f"{root} has no data file. Names that begin with _ or . are left out.")
        announced = [_announced(f, root / f.path) for f in files]
        uploads = f"{self._of(dataset)}/uploads"
        named = {"reference": reference} if reference else {}
        upload = self._call("POST", uploads, {"batchId": batch_id, "files": announced, **named})
        missing = [f for f in upload["files"] if f["state"] == "Missing"]
        on_bytes(sum(f["size"] for f in upload["files"]) - sum(f["size"] for f in missing))
        upload_path = f"{uploads}/{upload['id']}"
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="lethe-upload") as pool:
            list(pool.map(lambda f: self._send(upload_path, f, root / f["path"], on_bytes), missing))
        done = self._call("POST", f"{upload_path}:complete")
        return Uploaded(batch_id, len(files), sum(f.size for f in files), bool(done.get("checked", False)))

    def abandon(self, dataset: str, batch_id: str) -> None:
        """Delete the files of an upload that is not complete. Nothing happens if there is none.

        Args:
            dataset: The name of the Dataset.
            batch_id: The id of the batch.

        Raises:
            GatewayProblem: `UploadEnded`, if the batch is complete.
            TransientError: The gateway is away.
        """
        upload = hashlib.sha256(batch_id.encode()).hexdigest()[:32]
        try:
            self._call("DELETE", f"{self._of(dataset)}/uploads/{upload}")
        except GatewayProblem as e:
            if e.reason != "NotFound":
                raise

    # --- files ---

    def _send(self, upload_path: str, file: Mapping[str, Any], path: Path, on_bytes: OnBytes) -> None:
        if file.get("multipart"):
            self._send_parts(upload_path, file, path, on_bytes)
            return
        if file.get("put"):
            status = self._send_to_store(file["put"], path, 0, file["size"])
            if status == _FORBIDDEN:  # the URL has expired
                file = self._call("GET", upload_path)["files"][file["index"]]
                status = self._send_to_store(file["put"], path, 0, file["size"]) if file.get("put") else 200
            _require_taken(status, path)
        else:
            self._call("PUT", f"{upload_path}/files/{file['index']}", content=path.read_bytes())
        on_bytes(file["size"])

    def _send_parts(self, upload_path: str, file: Mapping[str, Any], path: Path, on_bytes: OnBytes) -> None:
        size, multipart = file["size"], file["multipart"]
        parts_path = f"{upload_path}/files/{file['index']}/parts"
        there = set(multipart["uploaded"])
        on_bytes(sum(_part_size(size, multipart["partSize"], n) for n in there))
        numbers = [n for n in range(1, multipart["parts"] + 1) if n not in there]
        for some in _groups(numbers, PARTS_AT_ONCE):
            asked = [
                {
                    "number": n,
                    "sha256": _sha256(
                        path, (n - 1) * multipart["partSize"], _part_size(size, multipart["partSize"], n)
                    ),
                }
                for n in some
            ]
            urls = self._call("POST", parts_path, {"parts": asked})["items"]
            with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="lethe-part") as pool:
                for part in pool.map(lambda a, u: self._part(parts_path, a, u, path), asked, urls):
                    on_bytes(part)

    def _part(self, parts_path: str, asked: Mapping[str, Any], part: Mapping[str, Any], path: Path) -> int:
        status = self._send_to_store(part, path, part["offset"], part["size"])
        if status == _FORBIDDEN:  # the URL has expired: many parts get theirs at once
            (part,) = self._call("POST", parts_path, {"parts": [asked]})["items"]
            status = self._send_to_store(part, path, part["offset"], part["size"])
        _require_taken(status, path)
        return int(part["size"])

    def _send_to_store(self, request: Mapping[str, Any], path: Path, offset: int, size: int) -> int:
        """Send a part of a file to the store; returns the status of the answer.

        Raises:
            TransientError: `GatewayAway`.
        """

        def attempt() -> requests.Response:
            with path.open("rb") as file:
                file.seek(offset)
                body = _Section(file, size) if size else b""
                with self._session() as session:
                    return session.put(
                        request["url"],
                        data=body,
                        auth=_as_given,
                        headers=dict(request["headers"]),
                        timeout=(CONNECT_SECONDS, READ_SECONDS),
                        verify=self._verify,
                    )

        return _repeated(attempt, f"the store of {path.name}").status_code

    # --- requests ---

    def _of(self, dataset: str) -> str:
        return f"{self._base}/datasets/{_segment(dataset)}"

    def _items(self, url: str, **asked: Any) -> Iterator[Any]:
        """The items of all pages of a list. What is empty or false is not asked for."""
        query = {name: "true" if value is True else value for name, value in asked.items() if value}
        while True:
            page = self._call("GET", url, query={**query, "limit": PAGE})
            yield from page["items"]
            if "nextCursor" not in page:
                return
            query["cursor"] = page["nextCursor"]

    def _call(
        self,
        method: str,
        url: str,
        document: Mapping[str, Any] | None = None,
        content: bytes | None = None,
        query: Mapping[str, Any] | None = None,
    ) -> Document:
        """The answer as JSON.

        Raises:
            GatewayProblem: The user has to change something.
            TransientError: A dependency is temporarily unavailable.
        """

        def attempt() -> requests.Response:
            headers = {"Authorization": f"Bearer {self._token()}"}
            with self._session() as session:
                return session.request(
                    method,
                    url,
                    params=query,
                    json=document,
                    data=content,
                    auth=_as_given,
                    headers=headers,
                    timeout=(CONNECT_SECONDS, READ_SECONDS),
                    verify=self._verify,
                    allow_redirects=False,
                )

        answer = _repeated(attempt, "the gateway")
        if answer.ok:
            return dict(answer.json()) if answer.content else {}
        raise _problem(answer)

    @contextmanager
    def _session(self) -> Iterator[requests.Session]:
        """One that no other thread uses: connections are reused, and sessions cannot be shared.

        Threads of uploads come and go, so a session of a thread would stay open after it.
        """
        try:
            session = self._idle.pop()
        except IndexError:
            session = requests.Session()
        try:
            yield session
        finally:
            self._idle.append(session)


def _as_given(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """The request with its own headers. Without this, a password of ~/.netrc would replace the token."""
    return request


class _Section:
    """A part of a file, as a body with a length."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._left = size
        self.len = size  # requests reads it

    def read(self, size: int = -1) -> bytes:
        count = self._left if size is None or size < 0 else min(size, self._left)
        content = self._file.read(count)
        self._left -= len(content)
        return content


def _segment(name: str) -> str:
    """A part of a path.

    Raises:
        InputError: `InvalidName`: HTTP clients take these names for folders, and ask for another path.
    """
    if name in ("", ".", ".."):
        raise InputError("InvalidName", f"the gateway cannot be asked for {name!r}. Look for it in the list.")
    return quote(name, safe="")


def _waited(look: Callable[[], _Look], not_yet: str, seconds: float) -> Document:
    """Look until it is reached.

    Raises:
        TransientError: With the reason `not_yet`.
    """
    ends = time.monotonic() + seconds
    while True:
        seen = look()
        if seen.reached is not None:
            return seen.reached
        if time.monotonic() > ends:
            raise TransientError(not_yet, f"after {seconds:g} s, {seen.said}. It goes on: call again to wait.")
        time.sleep(LOOK_SECONDS)


_URL: Final = "its URL is not valid, expected one such as https://lethe.example.org"
_NEVER_SENT: Final[Mapping[type[Exception], str]] = {
    requests.exceptions.InvalidURL: _URL,
    requests.exceptions.InvalidSchema: _URL,
    requests.exceptions.MissingSchema: _URL,
    requests.exceptions.InvalidHeader: "the token is not valid: it has a line break or begins with a blank",
    requests.exceptions.InvalidJSONError: "the spec has a value that JSON does not have",
}
"""Errors of what the caller gave, before anything was sent."""


def _repeated(attempt: Callable[[], requests.Response], whom: str) -> requests.Response:
    """Repeat what may succeed later, when the answer says so.

    Raises:
        GatewayProblem: `InvalidRequest`: no repetition can mend the URL, the token or the body.
        TransientError: A dependency is temporarily unavailable.
    """
    why: GatewayProblem | str = ""
    for number in range(1, ATTEMPTS + 1):
        wait = 2.0 ** (number - 2)
        try:
            answer = attempt()
        except tuple(_NEVER_SENT) as e:  # its text may contain the token
            why = f"{whom} cannot be asked: {_NEVER_SENT.get(type(e), _URL)}."
            raise GatewayProblem("InvalidRequest", why, 0) from None
        except requests.RequestException as e:
            why = type(e).__name__
        else:
            if answer.status_code not in (408, 429) and answer.status_code < 500:
                return answer
            problem = _problem(answer)
            why = problem if problem.reason != _NO_PROBLEM else str(answer.status_code)
            asked = answer.headers.get("Retry-After", "")
            wait = max(wait, float(asked)) if asked.isdecimal() else wait
        if number == ATTEMPTS or wait > _LONGEST_SECONDS:
            break
        time.sleep(wait)
    if isinstance(why, GatewayProblem):
        raise TransientError(why.reason, why.message)
    raise TransientError("GatewayAway", f"{whom} did not answer {number} times ({why}). Repeat the call later.")


def _require_taken(status: int, path: Path) -> None:
    """Require that the store has taken a file, or has it already.

    Raises:
        InputError: `StoreRefused`.
    """
    if status in _THERE or status < 300:
        return
    raise InputError(
        "StoreRefused",
        f"the store refused {path.name} ({status}). If the file changed while it was sent, send it again.",
    )


_NO_PROBLEM: Final = "GatewayRefused"


def _problem(answer: requests.Response) -> GatewayProblem:
    """The gateway's problem document as an error."""
    try:
        document = answer.json()
    except ValueError:
        document = {}
    document = document if isinstance(document, dict) else {}
    slug = str(document.get("type", "")).rpartition("/")[2]
    reason = "".join(word.capitalize() for word in slug.split("-")) or _NO_PROBLEM
    errors = document.get("errors") or ()
    said = "".join(f" {e['field']}: {e['message']}." for e in errors[:3])
    detail = document.get("detail") or f"the gateway answers {answer.status_code}."
    return GatewayProblem(reason, f"{detail}{said}", answer.status_code, errors)


def _announced(file: LocalFile, path: Path) -> dict[str, Any]:
    """A large file is sent in parts, and their checksums are announced later."""
    return {"path": file.path, "size": file.size} | ({"sha256": _sha256(path)} if file.size <= HASHED_BYTES else {})


def _sha256(path: Path, offset: int = 0, size: int | None = None) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        file.seek(offset)
        left = path.stat().st_size if size is None else size
        while left > 0 and (piece := file.read(min(_PIECE, left))):
            digest.update(piece)
            left -= len(piece)
    return digest.hexdigest()


def _part_size(size: int, part_size: int, number: int) -> int:
    return min(part_size, size - (number - 1) * part_size)


def _groups(numbers: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    for begin in range(0, len(numbers), size):
        yield numbers[begin : begin + size]
