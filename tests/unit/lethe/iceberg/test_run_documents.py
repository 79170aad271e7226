"""Documents of runs that lie beside the table."""

from pathlib import Path

import pytest
from lethe.contract.run import RunPointer
from lethe.iceberg import run_documents


@pytest.fixture
def uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / ".pyiceberg.yaml").write_text(
        f"catalog:\n  lite:\n    type: sql\n    uri: sqlite:///{tmp_path}/c.db\n    warehouse: file://{tmp_path}\n"
    )
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    return f"{run_documents.folder(f'file://{tmp_path}/t/')}/r.json"


def test_what_was_written_is_read_by_its_pointer_and_nothing_else_is(uri: str) -> None:
    """A later attempt writes its own over it; whoever still holds the old pointer must not take that for the old one."""
    digest = run_documents.write("lite", uri, '{"é": 1}')
    pointer = RunPointer(catalog="lite", uri=uri, sha256=digest)

    assert uri.endswith("/t/_runs/r.json")
    assert run_documents.read(pointer) == '{"é": 1}'.encode()
    run_documents.write("lite", uri, "{}")
    assert run_documents.read(pointer) is None


def test_one_that_is_gone_is_none(uri: str) -> None:
    assert run_documents.read(RunPointer(catalog="lite", uri=uri, sha256="")) is None
