"""The API server's errors as one line."""

from lethe.base.errors import InputError, TransientError
from lethe.kube import Away, error_of
from lethe_kubectl.errors import ResourcePlace, explained

PLACE = ResourcePlace("context tests", "https://127.0.0.1:1", "air", "kubectl", "lethe {}")


def answer(reason: str, message: str) -> bytes:
    return f'{{"kind": "Status", "reason": "{reason}", "message": {message!r}}}'.replace("'", '"').encode()


def test_a_server_that_does_not_answer_is_named() -> None:
    error = explained(Away(0, "NoAnswer", "GET /x: MaxRetryError"), PLACE)

    assert isinstance(error, TransientError)
    assert "context tests (https://127.0.0.1:1) does not answer" in str(error)


def test_a_kind_that_no_version_serves_means_that_lethe_is_not_installed() -> None:
    missing = error_of(404, b"404 page not found", "GET /apis/lethe.dev/v1alpha1/datasets")

    assert explained(missing, PLACE).reason == "NotInstalled"
    assert explained(missing, PLACE, ("v1beta1",)).reason == "OtherVersion"
    assert explained(missing, PLACE, ("v1alpha1",)).reason == "OlderChart"


def test_a_refused_right_without_a_pattern_keeps_its_message() -> None:
    error = explained(error_of(403, answer("Forbidden", "admission refused it"), "POST /x"), PLACE)

    assert isinstance(error, InputError)
    assert error.message == "admission refused it"


def test_credentials_that_expired_are_said_to_be_refused() -> None:
    assert explained(error_of(401, answer("Unauthorized", "Unauthorized"), "GET /x"), PLACE).reason == "NotLoggedIn"
