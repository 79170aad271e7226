"""Uploads batches through the gateway. I/O: HTTP, and the files.

Every request may be repeated: the gateway opens the same upload again, the store creates each object once, and completing twice
changes nothing. So an interrupted upload goes on where it ended when the same call is made again.
"""

import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final
from urllib.parse import quote

import requests

from lethe.base.errors import InputError, TransientError
from lethe.buffer.upload import LocalFile, data_files

ATTEMPTS: Final = 6
AT_ONCE: Final = 4
PARTS_AT_ONCE: Final = 64
HASHED_BYTES: Final = 64 * 1024 * 1024
CONNECT_SECONDS: Final = 10
READ_SECONDS: Final = 120
_FORBIDDEN: Final = 403
_THERE: Final = (409, 412)
"""The object is there already; completing the upload compares it."""
_PIECE: Final = 1024 * 1024
_SLOWEST_SECONDS: Final = 30.0
OnBytes = Callable[[int], object]


@dataclass(frozen=True)
class Uploaded:
    """A batch that is complete in the buffer."""

    batch_id: str
    files: int
    bytes: int
    """The size of all files."""
    checked: bool
    """Whether the gateway compared the files with the table."""


class Ingest:
    """Uploads batches of one Dataset. Threads may share it. Use it as a context manager, or call `close`.

    ```python
    with lethe.Ingest("https://lethe.example.org", "default", "flights", token) as ingest:
        ingest.put("2026-03-03", "out/2026-03-03")
    ```
    """

    def __init__(
        self, url: str, namespace: str, dataset: str, token: str | Callable[[], str], ca_file: str | None = None
    ) -> None:
        """Create `Ingest`.

        Args:
            url: Of the gateway.
            token: Of the cluster, or a function that returns a current one: it is called for each request.
            ca_file: The certificates to trust, in PEM; None: the system's.
        """
        base = f"{url.rstrip('/')}/v1/namespaces/{quote(namespace, safe='')}/datasets/{quote(dataset, safe='')}"
        self._uploads = f"{base}/uploads"
        self._token = token if callable(token) else lambda: token
        self._verify: str | bool = ca_file or True
        self._local = threading.local()
        self._sessions: list[requests.Session] = []

    def __enter__(self) -> "Ingest":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections of all threads. An incomplete upload goes on when `put` is called again."""
        for session in self._sessions:
            session.close()

    def put(self, batch_id: str, folder: str | Path, on_bytes: OnBytes = lambda _: None) -> Uploaded:
        """Upload the data files of a folder as one batch, and complete it. The same batch again changes nothing.

        Args:
            folder: Files whose names begin with `_` or `.` are left out.
            on_bytes: Called with numbers of bytes as they are sent, from several threads.

        Raises:
            InputError: The gateway's problem, such as BatchRefused, BatchIdUsed, UploadConflict, Forbidden.
            TransientError: `GatewayAway`, after several attempts.
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
        upload = self._call("POST", self._uploads, {"batchId": batch_id, "files": announced})
        missing = [f for f in upload["files"] if f["state"] == "Missing"]
        on_bytes(sum(f["size"] for f in upload["files"]) - sum(f["size"] for f in missing))
        upload_path = f"{self._uploads}/{upload['id']}"
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="lethe-upload") as pool:
            list(pool.map(lambda f: self._send(upload_path, f, root / f["path"], on_bytes), missing))
        done = self._call("POST", f"{upload_path}:complete")
        return Uploaded(batch_id, len(files), sum(f.size for f in files), bool(done.get("checked", False)))

    def abandon(self, batch_id: str) -> None:
        """Delete the files of an upload that is not complete. Nothing happens if there is none.

        Raises:
            InputError: `UploadEnded`, if the batch is complete.
        """
        upload = hashlib.sha256(batch_id.encode()).hexdigest()[:32]
        try:
            self._call("DELETE", f"{self._uploads}/{upload}")
        except InputError as e:
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
            urls = self._call("POST", f"{upload_path}/files/{file['index']}/parts", {"parts": asked})["items"]
            with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="lethe-part") as pool:
                for part in pool.map(lambda u: self._part(u, path), urls):
                    on_bytes(part)

    def _part(self, part: Mapping[str, Any], path: Path) -> int:
        _require_taken(self._send_to_store(part, path, part["offset"], part["size"]), path)
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
                return self._session().put(
                    request["url"],
                    data=body,
                    headers=dict(request["headers"]),
                    timeout=(CONNECT_SECONDS, READ_SECONDS),
                    verify=self._verify,
                )

        return _repeated(attempt, f"the store of {path.name}").status_code

    # --- requests ---

    def _call(
        self, method: str, url: str, document: Mapping[str, Any] | None = None, content: bytes | None = None
    ) -> dict[str, Any]:
        """The answer as JSON.

        Raises:
            InputError: The user has to change something.
            TransientError: A dependency is temporarily unavailable.
        """

        def attempt() -> requests.Response:
            return self._session().request(
                method,
                url,
                json=document,
                data=content,
                headers={"Authorization": f"Bearer {self._token()}"},
                timeout=(CONNECT_SECONDS, READ_SECONDS),
                verify=self._verify,
                allow_redirects=False,
            )

        answer = _repeated(attempt, "the gateway")
        if answer.ok:
            return dict(answer.json()) if answer.content else {}
        raise _problem(answer)

    def _session(self) -> requests.Session:
        """One for each thread: connections are reused, and sessions cannot be shared."""
        session: requests.Session | None = getattr(self._local, "session", None)
        if session is None:
            session = self._local.session = requests.Session()
            self._sessions.append(session)
        return session


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


def _repeated(attempt: Callable[[], requests.Response], whom: str) -> requests.Response:
    """Repeat what may succeed later.

    Raises:
        TransientError: A dependency is temporarily unavailable.
    """
    for number in range(1, ATTEMPTS + 1):
        wait = min(2.0 ** (number - 2), _SLOWEST_SECONDS)
        try:
            answer = attempt()
        except requests.RequestException as e:
            why = type(e).__name__
        else:
            if answer.status_code not in (408, 429) and answer.status_code < 500:
                return answer
            why = str(answer.status_code)
            asked = answer.headers.get("Retry-After", "")
            wait = max(wait, min(float(asked), _SLOWEST_SECONDS)) if asked.isdecimal() else wait
        if number < ATTEMPTS:
            time.sleep(wait)
    raise TransientError(
        "GatewayAway", f"{whom} did not answer {ATTEMPTS} times ({why}). Repeat the upload later: it goes on."
    )


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


def _problem(answer: requests.Response) -> InputError:
    """The gateway's problem document as an error."""
    try:
        document = answer.json()
    except ValueError:
        document = {}
    slug = str(document.get("type", "")).rpartition("/")[2]
    reason = "".join(word.capitalize() for word in slug.split("-")) or "GatewayRefused"
    errors = "".join(f" {e['field']}: {e['message']}." for e in (document.get("errors") or ())[:3])
    return InputError(reason, f"{document.get('detail') or f'the gateway answers {answer.status_code}.'}{errors}")


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
