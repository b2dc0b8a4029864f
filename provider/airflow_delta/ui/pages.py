"""The app behind "Delta tables": the pages, their data as JSON, and static files.

Read-only. A table is named by its location, and only known ones are opened (:mod:`airflow_delta.ui.known`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Query, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response

from airflow_delta.light_dataclasses import dataclass
from airflow_delta.ui import data, views
from airflow_delta.ui.access import Viewer, ViewerDep, may_see_assets
from airflow_delta.ui.addresses import diff_command, table_url
from airflow_delta.ui.known import KnownTable, find_table, table_of_connection
from airflow_delta.ui.open_transaction import transaction_reports
from airflow_delta.ui.own_files import static_files
from airflow_delta.ui.place import Place
from airflow_delta.ui.problems import PageProblem, rows_refused, with_command
from airflow_delta.ui.publications import with_states_elsewhere
from airflow_delta.ui.reader import schedule
from airflow_delta.ui.reader.schedule import admitted, in_plugin_thread
from airflow_delta.ui.responses import MAX_LOCATION, add_error_pages, prefix_of, render, root_of
from airflow_delta.ui.secure_headers import SecureHeaders
from airflow_delta.ui.selection import NEWEST_FIRST, SEARCHED, Order, Selection

Location = Annotated[str, Query(alias="table", max_length=MAX_LOCATION)]
Version = Annotated[int, Query(ge=0)]
Before = Annotated[int | None, Query(ge=0)]
Limit = Annotated[int | None, Query(ge=1, le=data.MAX_PAGE)]
Offset = Annotated[int, Query(ge=0)]
Search = Annotated[str, Query(alias="q", max_length=200)]
Part = Annotated[str, Query(max_length=200)]
TransactionId = Annotated[str, Query(alias="id", min_length=1, max_length=100)]
Keys = Annotated[list[str] | None, Query(max_length=20)]
_MAX_KEYS = 2_000


def create_app() -> FastAPI:
    """Return the app; Airflow mounts it."""
    app = FastAPI(title="Delta tables", openapi_url=None, docs_url=None, redoc_url=None)
    app.add_middleware(SecureHeaders)
    add_error_pages(app)
    # Static files need no session: the style sheet must also load on the page that asks the user to sign in.
    app.mount("/static", static_files(), name="static")
    for path, page in (
        ("/", tables),
        ("/open", open_table),
        ("/table", table),
        ("/transactions", transactions),
        ("/transaction", transaction),
        ("/commit", commit),
        ("/rows", rows),
        ("/api/tables", api_tables),
        ("/api/table", api_table),
        ("/api/transactions", api_transactions),
        ("/api/transaction", api_transaction),
        ("/api/commit", api_commit),
        ("/api/rows", api_rows),
    ):
        app.add_api_route(path, page, methods=["GET"], dependencies=[may_see_assets], response_model=None)
    return app


async def tables(request: Request, viewer: ViewerDep, search: Search = "", page: Offset = 0) -> Response:
    """Show the tables that Airflow knows."""
    return await in_plugin_thread(render, request, "tables.html", page=await _tables(request, viewer, search, page))


async def open_table(
    request: Request, viewer: ViewerDep, conn_id: Annotated[str, Query()], name: Annotated[str, Query(max_length=1000)]
) -> Response:
    """Redirect to the table of this name below a connection's base path."""
    uri = await admitted(table_of_connection, viewer, conn_id, name)
    return RedirectResponse(table_url(prefix_of(request), uri), status_code=303)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which page of a history is asked for.

    :param limit: versions that it looks at; ``None`` for the default.
    """

    selected: Selection
    before: int | None
    limit: int | None


def wanted(
    operation: Part = "",
    dag: Part = "",
    key: Part = "",
    sort: Order = NEWEST_FIRST,
    before: Before = None,
    limit: Limit = None,
) -> Wanted:
    """Return which page of a history a request asks for (dependency)."""
    return Wanted(Selection(operation.strip(), dag.strip(), key.strip(), sort), before, limit)


WantedDep = Annotated[Wanted, Depends(wanted)]


async def table(request: Request, viewer: ViewerDep, location: Location, wanted: WantedDep) -> Response:
    """Show what a table is, and its history."""
    page = await _table(request, viewer, location, wanted)
    return await in_plugin_thread(render, request, "table.html", page=page, limit=wanted.limit)


async def transactions(request: Request, viewer: ViewerDep, location: Location, part: bool = False) -> Response:
    """Show the uncommitted transactions: as a page, or as the part that the table's page loads."""
    page = await _transactions(request, viewer, location)
    return await in_plugin_thread(render, request, "transactions_part.html" if part else "transactions.html", page=page)


async def transaction(request: Request, viewer: ViewerDep, location: Location, transaction_id: TransactionId) -> Response:
    """Show what an open transaction would do."""
    page = await _transaction(request, viewer, location, transaction_id)
    return await in_plugin_thread(render, request, "transaction.html", page=page)


async def commit(request: Request, viewer: ViewerDep, location: Location, version: Version, offset: Offset = 0) -> Response:
    """Show one commit."""
    page = await _commit(request, viewer, location, version, offset)
    return await in_plugin_thread(render, request, "commit.html", page=page)


async def rows(
    request: Request, viewer: ViewerDep, location: Location, version: Version, keys: Keys = None, part: bool = False
) -> Response:
    """Show the rows of a commit: as a page, or as the part that the commit's page loads."""
    page = await _rows(request, viewer, location, version, keys)
    return await in_plugin_thread(render, request, "rows_part.html" if part else "rows.html", page=page)


async def api_tables(request: Request, viewer: ViewerDep, search: Search = "", page: Offset = 0) -> Response:
    """Return the tables that Airflow knows."""
    return JSONResponse(await _tables(request, viewer, search, page))


async def api_table(request: Request, viewer: ViewerDep, location: Location, wanted: WantedDep) -> Response:
    """Return what a table is, and a page of its history."""
    return JSONResponse(await _table(request, viewer, location, wanted))


async def api_transactions(request: Request, viewer: ViewerDep, location: Location) -> Response:
    """Return the uncommitted transactions."""
    return JSONResponse(await _transactions(request, viewer, location))


async def api_transaction(request: Request, viewer: ViewerDep, location: Location, transaction_id: TransactionId) -> Response:
    """Return what an open transaction would do."""
    return JSONResponse(await _transaction(request, viewer, location, transaction_id))


async def api_commit(request: Request, viewer: ViewerDep, location: Location, version: Version, offset: Offset = 0) -> Response:
    """Return one commit."""
    return JSONResponse(await _commit(request, viewer, location, version, offset))


async def api_rows(request: Request, viewer: ViewerDep, location: Location, version: Version, keys: Keys = None) -> Response:
    """Return the rows of a commit."""
    return JSONResponse(await _rows(request, viewer, location, version, keys))


async def _tables(request: Request, viewer: Viewer, search: str, page: int) -> dict[str, Any]:
    where = root_of(request), prefix_of(request)
    return await admitted(views.table_list, viewer, *where, search=search, page=page)


async def _table(request: Request, viewer: Viewer, location: str, wanted: Wanted) -> dict[str, Any]:
    known, place = await _located(viewer, location)
    selected, before = wanted.selected, wanted.before
    looked_at = wanted.limit or (data.PAGE if selected.is_plain else SEARCHED)
    found, state = await asyncio.gather(_history(place, looked_at, before), _state(place, before))
    missing, history = found
    where = root_of(request), prefix_of(request)
    page = await in_plugin_thread(views.history_page, viewer, known, history, *where, selected=selected, state=state)
    if page["publications"] and before is None:
        await with_states_elsewhere(page["publications"], known.uri, where[1], partial(_newest_history, viewer))
    if missing is not None and not page["transactions"]:  # else the runs that were to create it have failed
        raise missing
    return page


async def _newest_history(viewer: Viewer, location: str) -> Mapping[str, Any]:
    """Return the newest history of another table that the user may see."""
    _, place = await _located(viewer, location)
    return await schedule.history_of_table(place, limit=data.PAGE, before=None)


async def _history(place: Place, limit: int, before: int | None) -> tuple[PageProblem | None, Mapping[str, Any]]:
    """Return a page of the history; of a table that nothing has created yet the problem, and an empty one."""
    try:
        return None, await schedule.history_of_table(place, limit=limit, before=before)
    except PageProblem as problem:
        if problem.status != 404 or before is not None:
            raise
        return problem, views.NO_HISTORY


async def _state(place: Place, before: int | None) -> dict[str, Any] | None:
    """Return what the table is now, or why that is unknown: it never costs the page its history. Older pages omit it."""
    if before is not None:
        return None
    try:
        return await schedule.state(place)
    except PageProblem as problem:
        return {"problem": {"title": problem.title, "detail": problem.detail}}


async def _transactions(request: Request, viewer: Viewer, location: str) -> dict[str, Any]:
    known, place = await _located(viewer, location)
    found = await schedule.read_open_transactions(place)
    return await in_plugin_thread(views.transactions_page, viewer, known, found, root_of(request), prefix_of(request))


async def _transaction(request: Request, viewer: Viewer, location: str, transaction_id: str) -> dict[str, Any]:
    known, place = await _located(viewer, location)
    where = root_of(request), prefix_of(request)
    asked = await in_plugin_thread(transaction_reports, viewer, known, transaction_id, *where)
    found = await schedule.read_staged(place, asked.handle, asked.staged, rows=asked.rows) if asked.staged else None
    return {**asked.page, "found": found}


async def _commit(request: Request, viewer: Viewer, location: str, version: int, offset: int) -> dict[str, Any]:
    known, place = await _located(viewer, location)
    detail = await schedule.read_commit(place, version, offset=offset)
    return await in_plugin_thread(views.commit_page, viewer, known, detail, root_of(request), prefix_of(request))


async def _rows(request: Request, viewer: Viewer, location: str, version: int, keys: list[str] | None) -> dict[str, Any]:
    named = [key.strip() for key in keys or () if key.strip()]
    if sum(map(len, named)) > _MAX_KEYS:
        raise PageProblem(422, "The address of this page is not valid", detail=f"keys: at most {_MAX_KEYS} characters")
    known, place = await _located(viewer, location)
    if not await in_plugin_thread(viewer.may_read_rows, known.conn_id):
        raise rows_refused(known.uri)
    try:
        found = await schedule.commit_rows(place, version, keys=named)
    except PageProblem as problem:
        raise with_command(problem, diff_command(known.uri, version, known.conn_id, named)) from None
    return views.rows_page(known, found, prefix_of(request), named)


async def _located(viewer: Viewer, location: str) -> tuple[KnownTable, Place]:
    known = await admitted(find_table, viewer, location)
    return known, await schedule.place_of(known)
