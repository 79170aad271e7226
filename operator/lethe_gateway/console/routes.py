"""The routes of the console."""

from typing import Final

from lethe_gateway.console import datasets, login, overview, restatements
from lethe_gateway.console import datasets as batches
from lethe_gateway.console import datasets as vacuums
from lethe_gateway.console import restatements as erasures

ROUTERS: Final = (
    login.router,
    overview.router,
    datasets.router,
    batches.router,
    restatements.router,
    vacuums.router,
    erasures.router,
)
