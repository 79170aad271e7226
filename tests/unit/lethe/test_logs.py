"""Lines of a log in JSON say which Dataset, run and Restatement they are about, and contain no secret."""

import io
import json
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from lethe.contract.result import BEGINNING, NAMES_AT_MOST, lines_of_run, log_fields
from lethe.logs import JSON, LineFormatter, about, process_is_about
from lethe_spark.run.redact import RedactingFormatter
from pydantic import TypeAdapter, ValidationError

from tests.support.resources import a_group, a_restatement


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    process_is_about()
    yield logging.Logger("lethe.test")
    process_is_about()


def lines(logger: logging.Logger, formatter: logging.Formatter) -> io.StringIO:
    handler = logging.StreamHandler(io.StringIO())
    handler.setFormatter(formatter)
    logger.addHandler(handler)
    assert isinstance(handler.stream, io.StringIO)
    return handler.stream


def parsed(written: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in written.getvalue().splitlines()]


def test_a_line_has_the_fields_of_the_blocks_around_it(logger: logging.Logger) -> None:
    written = lines(logger, LineFormatter(JSON))

    with about(namespace="air", dataset="flights", restatement=""):
        logger.warning("it is %d o'clock\nor so", 7)
        with about(run="r1"):
            logger.info("inside")
    logger.info("outside")

    first, second, third = parsed(written)
    assert first.pop("time").endswith("+00:00")
    assert first == {
        "level": "WARNING",
        "logger": "lethe.test",
        "message": "it is 7 o'clock\nor so",
        "namespace": "air",
        "dataset": "flights",
    }
    assert (second["dataset"], second["run"]) == ("flights", "r1")
    assert third.keys() == {"time", "level", "logger", "message"}


def test_all_threads_of_a_process_with_one_run_have_its_fields(logger: logging.Logger) -> None:
    written = lines(logger, LineFormatter(JSON))
    process_is_about(**log_fields(a_group(a_restatement("fix"))))

    thread = threading.Thread(target=logger.info, args=("from a thread",))
    thread.start()
    thread.join()
    process_is_about()
    logger.info("after the run")

    of_run, after = parsed(written)
    assert (of_run["dataset"], of_run["restatement"], of_run["kind"]) == ("flights", "fix", "Restatement")
    assert of_run["run"]
    assert "run" not in after


def test_a_run_of_thousands_of_restatements_names_the_first_and_counts_all() -> None:
    found = log_fields(a_group(*(a_restatement(f"r{n}", batchIds=[f"B{n}"]) for n in range(50))))

    assert len(str(found["restatement"]).split(",")) == NAMES_AT_MOST
    assert found["restatements"] == 50


def test_an_exception_is_a_field_and_secrets_are_removed_before_they_are_encoded(logger: logging.Logger) -> None:
    formatter = RedactingFormatter(JSON)
    formatter.secrets = frozenset({'pa"ss\\word'})
    written = lines(logger, formatter)
    try:
        raise ValueError('the password is pa"ss\\word')
    except ValueError as e:
        logger.error('refused: pa"ss\\word', exc_info=e)

    (line,) = parsed(written)
    assert line["message"] == "refused: ***"
    assert line["exception"].endswith("ValueError: the password is ***")


def test_the_lines_of_a_run_are_found_in_json_too(logger: logging.Logger) -> None:
    written = lines(logger, LineFormatter(JSON))
    with about(dataset="flights"):
        for text in (f"{BEGINNING}a-1", "of a", f"{BEGINNING}b-1", "of b"):
            logger.info(text)

    found = [json.loads(line)["message"] for line in lines_of_run(written.getvalue().splitlines(), "a-1")]

    assert found == [f"{BEGINNING}a-1", "of a"]


@pytest.mark.parametrize("log_format", ["", JSON])
def test_a_document_that_could_not_be_read_is_not_in_the_log(logger: logging.Logger, log_format: str) -> None:
    """Such as metadata of a table, with the properties that somebody has set."""
    written = lines(logger, LineFormatter(log_format))
    document = {"rows": "-".join(["of", "somebody\n, input_type=str"])}  # not as it would be in a stack trace

    try:
        TypeAdapter(dict[str, int]).validate_python(document)
    except ValidationError as e:
        logger.error("%s", e, exc_info=e)

    assert "of-somebody" not in written.getvalue()
    assert "unable to parse string as an integer" in written.getvalue()
