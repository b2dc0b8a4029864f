"""The files that the pages consist of. An installation that lacks one says which, and how to get it back."""

from __future__ import annotations

import logging
import os
from functools import cache

import jinja2
from fastapi.responses import PlainTextResponse
from fastapi.staticfiles import StaticFiles

from airflow_delta.ui import charts, formats
from airflow_delta.ui.problems import PageProblem
from airflow_delta.version import __version__

logger = logging.getLogger(__name__)

HERE = os.path.dirname(__file__)


@cache
def templates() -> jinja2.Environment:
    """Return the templates, with the filters that they use."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(os.path.join(HERE, "templates")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        count=formats.count_of,
        number=formats.format_number,
        size=formats.format_bytes,
        time=formats.format_time,
        interval=formats.format_interval,
        ago=formats.ago,
        kind=formats.operation_group,
        unless_default=formats.keys_of_their_own,
    )
    environment.globals.update(
        sparkline=charts.sparkline,
        commit_chart=charts.commit_chart,
        chart_legend=charts.chart_legend,
        format_bytes=formats.format_bytes,
        row_count=formats.row_count,
    )
    return environment


def static_files() -> StaticFiles | PlainTextResponse:
    """Return the app of ``/static``. Without its folder the pages are plain, but have their content."""
    folder = os.path.join(HERE, "static")
    return StaticFiles(directory=folder) if os.path.isdir(folder) else without_file(folder)


def without_file(path: str, problem: PageProblem | None = None) -> PlainTextResponse:
    """Return the answer, in plain text, of a page that lacks one of its files.

    :param path: the file or folder, absolute or a template's name.
    :param problem: what the page was to say, if it is an error page.
    """
    path = os.path.join(HERE, "templates", path)
    logger.error("The installed airflow-provider-delta lacks %s", path)
    lines = [
        "This page cannot be shown: the installed airflow-provider-delta lacks a file of it.",
        f"Missing: {path}",
        f"Install airflow-provider-delta {__version__} again where the API server runs, and restart the API server:",
        f'    pip install --force-reinstall --no-deps "airflow-provider-delta=={__version__}"',
    ]
    if problem is not None:
        lines += ["", "The page was to say:", *filter(None, (problem.title, problem.advice, problem.detail))]
    return PlainTextResponse("\n".join([*lines, ""]), status_code=500 if problem is None else problem.status)
