"""Wrong bytes of every format, for minutes: each is an outcome of its file, and the files beside it are read."""

import json
import random
import time
from pathlib import Path

import pyarrow as pa
import pytest
from lethe.contract.dataset import KafkaSource
from lethe.contract.settings import FileFormat, MessageFormat, SchemaEvolution
from lethe.ingest.buffer_files import FileOutcome, Reader, ReadSettings
from lethe.ingest.buffer_store import FileTask
from lethe.ingest.checking import Whole, check_files
from lethe_inlet.decoding import Decoder, RowTarget
from lethe_inlet.epochs import TopicMessage

from tests.support import poison
from tests.support.buffer_formats import FORMATS, some_rows, written

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

SECONDS = 600
COLUMNS = pa.schema([("v", pa.int64()), ("day", pa.int32()), ("batch_id", pa.string())])


def test_wrong_bytes_never_fail_a_reader(tmp_path: Path) -> None:
    seed, until = random.randrange(2**32), time.monotonic() + SECONDS
    print(f"first seed: {seed}")
    bases = {f: [written(f, some_rows(n)) for n in (1, 50, 5000)] for f in FORMATS}
    while time.monotonic() < until:
        for format_ in FORMATS:
            for base in bases[format_]:
                _check_files(tmp_path, format_, base, [poison.mutated(base, seed + n) for n in range(20)])
        _check_messages([poison.mutated(b'{"v": 1, "day": 2}', seed + n) for n in range(100)])
        seed += 100


def _check_files(folder: Path, format_: FileFormat, base: bytes, wrong: list[bytes]) -> None:
    tasks = []
    for n, content in enumerate([base, *wrong, base]):
        path = folder / f"{n}"
        path.write_bytes(content)
        tasks.append(FileTask(f"B{n}", f"file://{path}", len(content)))
    settings = ReadSettings("batch_id", {}, format_)
    outcomes: dict[tuple[str, str], FileOutcome] = {}
    bad_ids = [t.column("batch_id") for t in Reader(COLUMNS, settings).tables(tasks, outcomes)]
    errors = {i: o.error for (i, _), o in outcomes.items() if o.error is not None}
    assert len(outcomes) == len(tasks)
    assert not errors.keys() & {tasks[0].batch_id, tasks[-1].batch_id}
    assert {e.reason for e in errors.values()} <= {
        "UnreadableFile",
        "SchemaMismatch",
        "FileTooCostly",
        "BatchIdMismatch",
    }
    found = [i for ids in bad_ids for i in ids.to_pylist() if i not in errors]
    assert len(found) == sum(o.rows for (i, _), o in outcomes.items() if i not in errors)
    for task in tasks[1:4]:
        refusal = check_files(COLUMNS, [task], settings, Whole(2**30, 2**30)).refusal
        error = errors.get(task.batch_id)
        assert (refusal and refusal.reason) == (error and error.reason)
        check_files(COLUMNS, [task], settings, Whole(0, 0))


def _check_messages(values: list[bytes]) -> None:
    source = KafkaSource(cluster="main", topics=("flights",), format=MessageFormat.JSON)
    messages = [TopicMessage(n, 0, None, v) for n, v in enumerate([b'{"v": 1, "day": 1}', *values])]
    decoded = Decoder(source).decode(messages, RowTarget(COLUMNS, "batch_id", SchemaEvolution.REFUSE), "B")
    assert decoded.rows.num_rows + len(decoded.refused) == len(messages)
    assert 0 not in {r.message.offset for r in decoded.refused}
    assert json.dumps([r.reason for r in decoded.refused])
