"""Pages and errors: rendered on the server, escaped, as HTML or, below ``/api``, as JSON."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

import jinja2
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.exceptions import HTTPException

from airflow_delta.links.pages import URL_PREFIX, URL_ROUTE
from airflow_delta.task_notes import masked_by_airflow
from airflow_delta.ui.addresses import commit_url, table_url
from airflow_delta.ui.own_files import templates, without_file
from airflow_delta.ui.problems import PageProblem

MAX_LOCATION = 2_000
"""Longest location in an address."""

_PAGES_OF_TABLES = {"/table": "", "/commit": "", "/rows": "Rows", "/transactions": "Transactions", "/transaction": "Transaction"}
"""What is below a table, and the last part of its breadcrumbs."""


def prefix_of(request: Request) -> str:
    """Return the path of these pages, as the browser sees it."""
    return str(request.scope.get("root_path", "")).rstrip("/")


def root_of(request: Request) -> str:
    """Return the path below which Airflow's UI is served."""
    return prefix_of(request).removesuffix(URL_PREFIX)


def render(request: Request, template: str, status: int = 200, **context: Any) -> Response:
    """Return a page."""
    where = {"prefix": prefix_of(request), "root": root_of(request), "inside": f"{root_of(request)}/plugin/{URL_ROUTE}"}
    try:
        return HTMLResponse(templates().get_template(template).render(**where, **context), status_code=status)
    except jinja2.TemplateNotFound as error:
        return without_file(str(error.name), context.get("problem"))


def add_error_pages(app: FastAPI) -> None:
    """Turn every error into a page, or into JSON for the endpoints below ``/api``."""
    app.add_exception_handler(PageProblem, _problem)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(Exception, _unexpected)


async def _problem(request: Request, error: Exception) -> Response:
    return _answer(request, error if isinstance(error, PageProblem) else PageProblem(500, "Something went wrong"))


async def _http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    if status == 401:
        return _sign_in(request)
    if status == 403:
        advice = "The pages require permission to read assets. Ask an administrator of this Airflow for it."
        return _answer(request, PageProblem(403, "You may not see Delta tables", advice))
    if status == 404:
        return _answer(request, PageProblem(404, "There is no such page"))
    return _answer(request, PageProblem(status, str(getattr(error, "detail", "Something went wrong"))))


async def _invalid(request: Request, error: Exception) -> Response:
    problems = error.errors() if isinstance(error, RequestValidationError) else []
    detail = "; ".join(f"{'.'.join(str(part) for part in problem['loc'][1:])}: {problem['msg']}" for problem in problems)
    return _answer(request, PageProblem(422, "The address of this page is not valid", detail=detail))


async def _unexpected(request: Request, error: Exception) -> Response:  # noqa: ARG001 - the server logs it
    return _answer(request, PageProblem(500, "Something went wrong", "See the log of the API server."))


def _sign_in(request: Request) -> Response:
    """Redirect a browser to the login page and back; inside the frame, show a link for the whole window instead."""
    path = request.url.path.removeprefix(root_of(request))
    query = f"?{request.url.query}" if request.url.query else ""
    # Back to these pages within Airflow's UI.
    back = f"{root_of(request)}/plugin/{URL_ROUTE}{root_of(request)}{quote(path)}{query}"
    url = f"{root_of(request)}/api/v2/auth/login?{urlencode({'next': back})}"
    problem = PageProblem(401, "Your session has ended", "Sign in to see this page.")
    if _wants_json(request) or request.headers.get("sec-fetch-dest", "document") != "document":
        return _answer(request, problem, sign_in=url)
    return RedirectResponse(url, status_code=303)


def _answer(request: Request, problem: PageProblem, sign_in: str | None = None) -> Response:
    if _wants_json(request):
        content = {"status": problem.status, "title": problem.title, "advice": problem.advice, "detail": problem.detail}
        answer: Response = JSONResponse(content, status_code=problem.status)
    else:
        template, heading = ("problem_part.html", "h2") if _is_part(request) else ("problem.html", "h1")
        context = {"problem": problem, "sign_in": sign_in, "crumbs": _crumbs(request), "heading": heading}
        answer = render(request, template, problem.status, **context)
    if problem.retry_after is not None:
        answer.headers["Retry-After"] = str(problem.retry_after)
    return answer


def _crumbs(request: Request) -> list[tuple[str, str | None]]:
    """Return the way back from an error by the address of the page: names, and URLs of the pages above it."""
    prefix, page, asked = prefix_of(request), _path(request), request.query_params
    table, version = asked.get("table", ""), asked.get("version", "")
    if page not in _PAGES_OF_TABLES or not table:
        return [("Error", None)]
    crumbs: list[tuple[str, str | None]] = [(masked_by_airflow(table).rstrip("/").rpartition("/")[2] or "Table", None)]
    # An address with a password in it is not written anywhere.
    is_plain = masked_by_airflow(table) == table and len(table) <= MAX_LOCATION
    if page != "/table" and is_plain:
        crumbs = [(crumbs[0][0], table_url(prefix, table))]
    if page in ("/commit", "/rows") and version.isascii() and version.isdecimal() and len(version) < 20:
        url = commit_url(prefix, table, int(version)) if page == "/rows" and is_plain else None
        crumbs.append((f"Version {int(version)}", url))
    return [*crumbs, (_PAGES_OF_TABLES[page], None)] if _PAGES_OF_TABLES[page] else crumbs


def _path(request: Request) -> str:
    return request.url.path.removeprefix(prefix_of(request))


def _wants_json(request: Request) -> bool:
    return _path(request).startswith("/api/")


def _is_part(request: Request) -> bool:
    return _path(request) in ("/transactions", "/rows") and request.query_params.get("part") == "1"
