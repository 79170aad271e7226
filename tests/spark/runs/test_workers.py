"""Spark's Python workers: what they have when a task begins."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from pyspark.sql import SparkSession


def test_a_task_finds_no_archive_on_its_path_and_what_it_imports_loaded(spark: SparkSession) -> None:
    """An archive is gone through again by every task, which takes longer than a hundred small files do."""

    def look(_: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        import pyspark
        from lethe.decoder.process import _Server

        archives = [p for p in sys.path if Path(p).is_file()]
        yield pd.DataFrame(
            {
                "archives": [len(archives)],
                "loaded": ["lethe.ingest.buffer_files" in sys.modules],
                "pyspark": [pyspark.__file__],
                "decoders": [_Server._control is not None and _Server._program is None],
            }
        )

    found = (
        spark.range(0, 1, 1, 1)
        .mapInPandas(look, "archives int, loaded boolean, pyspark string, decoders boolean")
        .collect()
    )

    assert [(r.archives, r.loaded, Path(r.pyspark).is_file()) for r in found] == [(0, True, True)]
    assert [r.decoders for r in found] == [True]  # the server of decoders is a fork of the daemon
