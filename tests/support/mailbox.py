"""The operator's side of a mailbox, with an API server: of the committer, or of the warm driver."""

import itertools
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from lethe.contract.result import Progress, RunResult
from lethe.contract.run import MailboxEntry, ResultPointer, RunSpec
from lethe.iceberg import run_documents
from lethe.kube import LEASES

from tests.support.api_server import ApiServer
from tests.support.builders import read_result

COMMITTER = "lethe-committer"
WARM_DRIVER = "lethe-warm-driver"
_NUMBERS = itertools.count()
_BEGAN = datetime(2026, 3, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Namespace:
    """The operator's hand: it puts runs into ConfigMaps and the mailbox, and hears what becomes of them."""

    server: ApiServer
    # Name of the mailbox and of its Lease.
    box: str = COMMITTER

    @classmethod
    def make(cls, server: ApiServer, box: str = COMMITTER) -> "Namespace":
        server.create(box)
        server.create(box, LEASES)
        return cls(server, box)

    def ask(self, spec: RunSpec, document: str | None = None, files: tuple[str, ...] = ()) -> str:
        """Let a run be carried out; later ones come after it. The key in the mailbox.

        Args:
            files: With values, which the run needs.
        """
        return self._write(spec, document, files=files)

    def cancel(self, spec: RunSpec) -> None:
        self._write(spec, None, cancelled=True)

    def _write(
        self, spec: RunSpec, document: str | None, cancelled: bool | None = None, files: tuple[str, ...] = ()
    ) -> str:
        name, prefix = self.config_map(spec), spec.run_id[:12]
        with self.server.news:
            if self.server.find(name) is None:
                self.server.create(name)
            self.server.put(name, **{f"{prefix}.run.json": document or spec.to_json()})
            entry = MailboxEntry(
                dataset_uid=spec.dataset.uid,
                run_id=spec.run_id,
                family=spec.family,
                attempt=spec.attempt,
                config_map=name,
                prefix=prefix,
                created_time=_BEGAN + timedelta(seconds=next(_NUMBERS)),
                cancelled=cancelled,
                files=files,
            )
            key = f"{spec.run_id}-{spec.attempt}.json"
            self.server.put(self.box, **{key: entry.to_json()})
        return key

    def config_map(self, spec: RunSpec) -> str:
        return f"{spec.dataset.name}-runs"

    def is_done(self, spec: RunSpec) -> bool:
        """Whether the key of this attempt is not in the mailbox (any more)."""
        return f"{spec.run_id}-{spec.attempt}.json" not in self.server.data(self.box)

    def wait_until_done(self, *specs: RunSpec, within_seconds: float = 90) -> None:
        self.server.wait_for(lambda: all(map(self.is_done, specs)), within_seconds, "the mailbox is empty")

    def result(self, spec: RunSpec, within_seconds: float = 90) -> RunResult:
        """Of this attempt, as soon as its key is taken out."""
        self.wait_until_done(spec, within_seconds=within_seconds)
        text = self.document(spec, "result.json")
        assert text is not None, "no result was delivered"
        if '"uri"' in text and '"kind"' not in text:
            text = (run_documents.read(ResultPointer.model_validate_json(text)) or b"").decode()
        reported = read_result(text)
        assert (reported.run_id, reported.attempt) == (spec.run_id, spec.attempt)
        return reported

    def carried_out(self, spec: RunSpec, within_seconds: float = 90) -> RunResult:
        self.ask(spec)
        return self.result(spec, within_seconds)

    def progress(self, spec: RunSpec) -> Progress | None:
        text = self.document(spec, "progress.json")
        return None if text is None else Progress.model_validate_json(text)

    def document(self, spec: RunSpec, suffix: str) -> str | None:
        return self.server.data(self.config_map(spec)).get(f"{spec.run_id[:12]}.{suffix}")
