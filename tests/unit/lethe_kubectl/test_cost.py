"""`lethe cost`: what is added up, and the rows that it prints."""

from datetime import UTC, datetime

from lethe.contract.status import RunUsage
from lethe_kubectl.cost import Prices, rows

MORNING = datetime(2026, 11, 1, 6, tzinfo=UTC)
SMALL = RunUsage(since=MORNING, runs=2, cpu_seconds=1800, files_read=2_000_000, files=1_000_000, bytes=1 << 30)
LARGE = RunUsage(since=MORNING, runs=40, cpu_seconds=30_000, executor_cpu_seconds=6_000, files=500_000, bytes=10 << 30)


def test_the_dearest_is_first_and_the_sum_is_last() -> None:
    assert list(rows({"new": RunUsage(), "small": SMALL, "large": LARGE}, Prices(0.05 / 3600, 0.4 / 1e6, 5 / 1e6))) == [
        ["small", "2026-11-01", "2", "0.50", "2000000", "1000000", "1.00", "5.83"],
        ["large", "2026-11-01", "40", "10.00", "0", "500000", "10.00", "3.00"],
        ["new", "", "0", "0.00", "0", "0", "0.00", "0.00"],
        ["(all)", "", "42", "10.50", "2000000", "1500000", "11.00", "8.83"],
    ]


def test_without_prices_there_is_no_cost_and_the_processor_time_decides() -> None:
    found = list(rows({"small": SMALL, "large": LARGE}, Prices()))

    assert [(row[0], row[-1]) for row in found] == [("large", ""), ("small", ""), ("(all)", "")]
