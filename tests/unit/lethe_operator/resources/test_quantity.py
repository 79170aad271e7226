"""Kubernetes quantities as numbers."""

import pytest
from lethe.contract.kubernetes import parse_bytes, parse_quantity, written


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("128Mi", 128 * 1024**2),
        ("1Gi", 1024**3),
        ("2G", 2 * 10**9),
        ("1500", 1500),
        (1500, 1500),
        ("1e3", 1000),
        ("1E", 10**18),
        ("0.5Ki", 512),
        ("1e99999", 2**63 - 1),
        ("1e999999999", 2**63 - 1),
        ("-1e99999999999999999999", -(2**63) + 1),
        ("1e-99999999999999999999", 0),
    ],
)
def test_bytes_are_read_as_kubernetes_reads_them(text: object, expected: int) -> None:
    assert expected == parse_bytes(text)


def test_half_a_cpu_is_500m() -> None:
    assert parse_quantity("0.5") == parse_quantity("500m")


@pytest.mark.parametrize(
    "text", ["", "lots", "12Q", "Mi", "1 2", "1 Ki", "1Ki\n", "1_000", "\u0661Ki", "1e3Ki", "Infinity", "NaN"]
)
def test_what_is_no_quantity_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        parse_quantity(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0"), (1023, "1023"), (1024, "1Ki"), (12 * 1024**2, "12Mi"), (3 * 1024**3 // 2, "1.5Gi"), (2**70, "1024Ei")],
)
def test_bytes_are_written_for_people(size: int, text: str) -> None:
    assert text == written(size)
