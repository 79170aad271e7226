"""Pages of batches, and single batches, of a table with many. I/O."""

import random
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from bench.gateway_scales import GatewayScale
from bench.gateway_site import PATH, START, Site, ask, built
from bench.timing import failure, say, spread

Ask = Callable[[random.Random], tuple[str, dict[str, Any]]]
PAGE = 100
CLIENTS = 2
BATCH = "one batch"


def pages(site: Site, scale: GatewayScale) -> dict[str, Any]:
    """The first answer builds the index. Then each kind of request is sent as often, at random places of the order."""
    built_seconds = built(site)
    after_build = site.memory_mib()
    say(f"  the index was built in {built_seconds:.1f} s, {site.index_bytes():,} bytes, peak {after_build} MiB")
    span = scale.batches * 31
    results = [_measured(site, scale, name, make) for name, make in _kinds(site, span).items()]
    rate = _pages_per_second(site, scale)
    refresh = _refreshed(site, scale)
    return {
        "batches": scale.batches,
        "results": results,
        "index": {"build_seconds": round(built_seconds, 2), "bytes": site.index_bytes(), "refresh_seconds": refresh},
        "pages_per_second": rate,
        "memory_mib": {"after_build": after_build, "peak": site.memory_mib()},
    }


def _kinds(site: Site, span: int) -> dict[str, Ask]:
    def moment(chance: random.Random) -> str:
        return (START + timedelta(seconds=chance.randrange(span))).isoformat().replace("+00:00", "Z")

    def page(**query: Any) -> Ask:
        def make(chance: random.Random) -> tuple[str, dict[str, Any]]:
            chosen = {k: v(chance) if callable(v) else v for k, v in query.items()}
            return f"{PATH}/batches", {**chosen, "limit": PAGE}

        return make

    def day(chance: random.Random) -> str:
        return f"2026-{chance.randrange(1, 13):02d}-{chance.randrange(1, 29):02d}"

    return {
        "newest page": page(),
        "page at any time": page(until=moment),
        "refused, at any time": page(until=moment, state="refused"),
        "reverted or refused, at any time": page(until=moment, state=["reverted", "refused"]),
        "of one Restatement": page(restatement=lambda c: f"revert-{c.randrange(200)}"),
        "ids of a month": page(idPrefix=lambda c: f"2026-{c.randrange(1, 13):02d}"),
        "ids of an hour": page(idPrefix=lambda c: f"{day(c)}T{c.randrange(24):02d}"),
        "ids that do not exist": page(idPrefix="absent"),
        "refused, ids of a day": page(state="refused", idPrefix=day),
        BATCH: lambda c: (f"{PATH}/batches/{c.choice(site.ids)}", {}),
    }


def _measured(site: Site, scale: GatewayScale, name: str, make: Ask) -> dict[str, Any]:
    chance = random.Random(name)
    taken: list[float] = []
    before = site.cpu_seconds()
    try:
        for _ in range(scale.requests):
            path, query = make(chance)
            seconds, status, body = site.get(path, **query)
            assert status == 200, body
            taken.append(round(seconds, 5))
    except Exception as e:
        return {"kind": name, "error": failure(e)}
    found: dict[str, Any] = {"kind": name, "seconds": spread(taken), "p95": percentile(taken, 95)}
    found["cpu_seconds"] = round((site.cpu_seconds() - before) / scale.requests, 5)
    say(f"  {name}: median {found['seconds']['median'] * 1000:.1f} ms, 95 % below {found['p95'] * 1000:.1f} ms")
    return found


def percentile(values: list[float], share: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * share // 100)]


def _pages_per_second(site: Site, scale: GatewayScale) -> float:
    """Of clients that send one request after the other."""
    make = _kinds(site, scale.batches * 31)["page at any time"]
    counts = [0] * CLIENTS
    until = time.monotonic() + scale.seconds

    def client(number: int) -> None:
        connection, chance = site.connection(), random.Random(number)
        while time.monotonic() < until:
            path, query = make(chance)
            _, status, body = ask(connection, site.token, path, query)
            assert status == 200, body
            counts[number] += 1

    threads = [threading.Thread(target=client, args=(n,)) for n in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return round(sum(counts) / scale.seconds, 1)


def _refreshed(site: Site, scale: GatewayScale) -> float:
    """Seconds from a commit to the first answer that shows it."""
    site.disconnect()  # the server closes a connection that was idle while the others read pages
    _, _, before = site.get(f"{PATH}/batches", limit=1)
    site.change(scale.changed)
    site.disconnect()
    started = time.monotonic()
    while True:
        _, _, body = site.get(f"{PATH}/batches", limit=1)
        if body["freshness"]["ledgerVersion"] > before["freshness"]["ledgerVersion"]:
            return round(time.monotonic() - started, 2)
        assert time.monotonic() - started < 300, body["freshness"]
        time.sleep(0.02)
