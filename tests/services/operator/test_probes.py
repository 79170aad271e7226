"""What a pod answers to the kubelet."""

import asyncio
import socket
import urllib.error
import urllib.request

from lethe_operator.probes import ProbeAnswer, probes


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def ask(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode().strip()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode().strip()


def test_a_process_that_is_healthy_and_not_ready_says_both() -> None:
    async def answers() -> list[tuple[int, str]]:
        port = free_port()
        async with probes(port, lambda: ProbeAnswer(True, "ok"), lambda: ProbeAnswer(False, "Nothing is listed.")):
            return [await asyncio.to_thread(ask, port, path) for path in ("/healthz", "/readyz", "/other")]

    healthy, ready, other = asyncio.run(answers())

    assert healthy == (200, "ok")
    assert ready == (503, "Nothing is listed.")
    assert other[0] == 404
