"""The routes of the console."""

from typing import Final

from lethe_gateway.console import batches, datasets, erasures, login, overview, restatements, vacuums

ROUTERS: Final = (
    login.router,
    overview.router,
    datasets.router,
    batches.router,
    restatements.router,
    vacuums.router,
    erasures.router,
)
