"""The options of a writer become the arguments of `write`."""

from typing import Any

import pytest
from lethe.base.errors import InputError
from lethe_spark.sdk import batch_writer
from lethe_spark.sdk.batch_writer import BatchWriter

FRAME: Any = object()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The arguments of each `write`, which writes nothing."""
    found: list[dict[str, Any]] = []
    monkeypatch.setattr(batch_writer, "write", lambda _, table, **more: found.append({"table": table, **more}))
    return found


def test_options_are_the_arguments_of_a_write_whatever_the_case_of_their_names(asked: list[dict[str, Any]]) -> None:
    wanted = BatchWriter(FRAME).option("batchId", "C").options(batchidstoreplace="A, B", batchReplacingReason="late")

    wanted.option("UNKNOWNBATCHES", "Allow").save("main.air.flights")

    assert asked == [
        {
            "table": "main.air.flights",
            "batch_id": "C",
            "batch_ids_to_replace": ("A", "B"),
            "batch_replacing_reason": "late",
            "batch_column": "batch_id",
            "prepare": False,
            "deletes": "Auto",
            "unknown_batches": "Allow",
            "reference": "",
        }
    ]


def test_an_unknown_option_is_refused_with_the_known_ones_and_a_write_without_a_batch_id(
    asked: list[dict[str, Any]],
) -> None:
    with pytest.raises(
        InputError, match=r"UnknownOption: .*'batch'.* batchId, batchIdsToReplace, batchReplacingReason"
    ):
        BatchWriter(FRAME).option("batch", "D")
    with pytest.raises(InputError, match=r"^InvalidBatchId: "):
        BatchWriter(FRAME).save("main.air.flights")
    assert asked == []
