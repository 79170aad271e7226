"""How a request fails: with a problem document for programs, with a page for people."""

from starlette.responses import Response
from starlette.types import Scope

from lethe_gateway.answers import problem_response
from lethe_gateway.console import pages, sessions
from lethe_gateway.problems import Problem
from lethe_gateway.services import Services


def failure(scope: Scope, problem: Problem, services: Services) -> Response:
    """A page if the console is enabled and the path is one of its pages; otherwise a problem document."""
    if services.settings.console.enabled and sessions.is_page(scope["path"]):
        return pages.failure(scope, problem, services)
    return problem_response(problem)
