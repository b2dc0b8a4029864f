"""The Airflow plugin: the entry "Delta tables" in the navigation, its app, what failed tasks leave for it; a deadline reference.

Workers import plugins, too, so the app is imported only when the API server gets the first request for it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from airflow.sdk import conf
from airflow.sdk.plugins_manager import AirflowPlugin

from airflow_delta.assets.deadline import LastCommitDeadline
from airflow_delta.links.pages import URL_PREFIX, URL_ROUTE
from airflow_delta.plugins import listener
from airflow_delta.plugins.priorities import EndsTransaction

logger = logging.getLogger(__name__)


def root_path() -> str:
    """Return the path of ``[api] base_url``, below which Airflow is served; empty for the root of the host."""
    return urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/")


class LazyApp:
    """An ASGI app that is built on its first call; where Airflow lacks what it is built on, it says so."""

    def __init__(self) -> None:
        self._app: Any = None

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
        send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ) -> None:
        """Pass the request on."""
        if self._app is None:
            self._app = _app()
        await self._app(scope, receive, send)


def _app() -> Any:
    try:
        from airflow_delta.ui.pages import create_app

        return create_app()
    except (ImportError, AttributeError) as error:
        from starlette.responses import PlainTextResponse

        from airflow_delta.ui.problems import cannot_be_shown

        logger.exception("The pages of Delta tables cannot be shown")
        return PlainTextResponse(f"{cannot_be_shown('Delta tables')} {error}", status_code=503)


class DeltaTablesPlugin(AirflowPlugin):
    """Pages about the Delta tables that Airflow writes."""

    name = "delta_tables"
    listeners = [listener]
    deadline_references = [LastCommitDeadline]
    priority_weight_strategies = [EndsTransaction]
    fastapi_apps = [{"app": LazyApp(), "url_prefix": URL_PREFIX, "name": "Delta tables"}]
    external_views = [
        {
            "name": "Delta tables",
            "href": f"{root_path()}{URL_PREFIX}/",
            "destination": "nav",
            "category": "browse",
            "url_route": URL_ROUTE,
            "icon": f"{root_path()}{URL_PREFIX}/static/icon.svg",
            "icon_dark_mode": f"{root_path()}{URL_PREFIX}/static/icon-dark.svg",
        }
    ]
