"""What Prometheus scrapes from the gateway: routes as they are declared, never a path of a client."""

from pathlib import Path

from lethe_gateway.limits import GatewayMetrics

PAGE = Path(__file__).parents[3] / "docs/metrics.md"


def test_requests_are_counted_by_route_method_and_status() -> None:
    metrics = GatewayMetrics()
    route = "/v1/namespaces/{namespace}/datasets"
    metrics.request_ended(route, "GET", 200, 0.2)
    metrics.request_ended(route, "GET", 200, 0.4)
    metrics.request_ended("", "GET", 404, 0.1)

    value = metrics.registry.get_sample_value
    assert value("lethe_gateway_requests_total", {"route": route, "method": "GET", "status": "200"}) == 2
    assert value("lethe_gateway_requests_total", {"route": "none", "method": "GET", "status": "404"}) == 1
    assert value("lethe_gateway_request_duration_seconds_count", {"route": route}) == 2


def test_the_page_about_metrics_names_every_one() -> None:
    page = PAGE.read_text()
    names = {m.name + ("_total" if m.type == "counter" else "") for m in GatewayMetrics().registry.collect()}

    assert {n for n in names if n.startswith("lethe_") and f"`{n}`" not in page} == set()
