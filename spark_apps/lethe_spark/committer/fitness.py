"""Which runs the committer can carry out. Pure."""

from typing import assert_never

from lethe.base.errors import TransientError
from lethe.buffer.small_sets import FILES_AT_MOST
from lethe.contract.run import ConsolidationSpec, RunKind, RunSpec
from lethe.contract.settings import ConsolidationMode


class NeedsSpark(TransientError):
    """The run is not refused; it needs a Job."""

    def __init__(self, why: str) -> None:
        super().__init__("NeedsSpark", f"{why}. Nothing was changed. A Job carries out the run.")


def require_fit(spec: RunSpec) -> None:
    """Raises: NeedsSpark, for a run that writes data files, reads their rows, or registers many files."""
    match spec.kind:
        case RunKind.RESTATEMENT:
            assert spec.restatement is not None
            if spec.restatement.dry_run:
                raise NeedsSpark("a dry run reads data files")
            for request in spec.restatement.requests:
                if request.replacement is not None or not request.operation.is_metadata_only:
                    raise NeedsSpark(f"Restatement {request.name}: a {request.operation} writes data")
                if request.rows is not None or request.batch_ids_uri:
                    raise NeedsSpark(f"Restatement {request.name}: it needs more than metadata")
        case RunKind.REANCHORING:
            pass
        case RunKind.CONSOLIDATION:
            assert spec.consolidation is not None
            _require_small_registration(spec.consolidation)
        case RunKind.VACUUM | RunKind.ERASURE_CHECK:
            raise NeedsSpark(f"a {spec.family} writes data")
        case _:
            assert_never(spec.kind)


def _require_small_registration(spec: ConsolidationSpec) -> None:
    if spec.mode is not ConsolidationMode.REGISTER:
        raise NeedsSpark("a consolidation of mode Rewrite writes data")
    if len(spec.batch_ids) > FILES_AT_MOST:
        raise NeedsSpark(
            f"the run has {len(spec.batch_ids)} batches, and the committer registers at most {FILES_AT_MOST} files"
        )
