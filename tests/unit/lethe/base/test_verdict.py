"""A verdict as an error, and an error as a verdict."""

import pytest
from lethe.base.errors import EXIT_INPUT, EXIT_TRANSIENT, InputError, LetheError, TransientError, Verdict


@pytest.mark.parametrize(
    ("kind", "transient", "exit_code"), [(InputError, False, EXIT_INPUT), (TransientError, True, EXIT_TRANSIENT)]
)
def test_an_error_and_its_verdict_say_the_same(kind: type[LetheError], transient: bool, exit_code: int) -> None:
    verdict = Verdict("AccessDenied", "The store denies it.", transient=transient)

    error = kind.of(verdict)

    assert (error.verdict, error.exit_code, str(error)) == (verdict, exit_code, str(verdict))


def test_a_sentence_more_leaves_everything_else() -> None:
    verdict = Verdict("Away", "S3 is away.", transient=True)

    assert verdict.adding("It is tried again.") == Verdict("Away", "S3 is away. It is tried again.", transient=True)
