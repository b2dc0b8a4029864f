"""The process that reads logs for the pages: requests on its standard input, answers on its standard output.

So Airflow's API server holds no log in its memory and no thread of it is busy reading; a read that takes too long or too much
memory is killed with this process. A message is its length in four bytes, then JSON. Credentials come with the request, never as
an argument or in the environment. Airflow is not imported.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, BinaryIO

from airflow_delta.contract.staging_directory import STAGING_DIRECTORY
from airflow_delta.exceptions import DeltaTableNotFoundException, PathOutsideTableException, ReadLimitException
from airflow_delta.log.delta_log import DeltaLog
from airflow_delta.log.storage.file_names import LOG_DIRECTORY
from airflow_delta.log.storage.local import LocalStore, local_path
from airflow_delta.masking import masked, masked_values, secret_values
from airflow_delta.ui import commit_rows, data, staged_rows, table_state
from airflow_delta.ui.reader.messages import HEADER, decode_json, encode_json, framed

MAX_ANSWER = 4 << 20
"""Bytes of JSON in one answer: the API server decodes it."""

ADDRESS_SPACE = 8 << 30
"""Limit on addresses, besides the API server's limit on memory in use."""

_CLIPPED_TEXT = 2_000
_CLIPPED_ITEMS = 500
_LATE = 5.0


def main() -> None:
    """Answer requests until there are no more."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # What libraries print must not get into the answers.
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.nice(10)  # pages can wait
    # PyArrow imports NumPy where it finds it: 0.1 s and 17 MB of a reader, which has no use for it.
    sys.modules.setdefault("numpy", None)  # type: ignore[arg-type]
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE if hard == resource.RLIM_INFINITY else min(ADDRESS_SPACE, hard), hard))
    while (request := _receive(requests)) is not None:
        # If the API server is gone, nobody else ends a read that hangs.
        signal.setitimer(signal.ITIMER_REAL, float(request.get("seconds", 60)) + _LATE)
        reply = framed(handle_request(request))
        signal.setitimer(signal.ITIMER_REAL, 0)
        answers.write(reply)
        answers.flush()


def handle_request(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to a request: ``{"result": ...}``, or ``{"kinds": [...], "detail": ...}`` of an error.

    :param request: ``what`` (a function of :mod:`airflow_delta.ui.data`, :mod:`airflow_delta.ui.table_state`,
        :mod:`airflow_delta.ui.commit_rows` or :mod:`airflow_delta.ui.staged_rows`) with its ``arguments``; ``uri``, ``options``
        and ``within`` say where the table is.
    """
    secrets = secret_values(request.get("options") or {})
    try:
        return {"result": masked_values(_small_enough(_read(request)), secrets)}
    except MemoryError:
        return _failed(ReadLimitException(f"Reading table {request['uri']} takes more memory than is available."), secrets)
    except Exception as error:  # noqa: BLE001 - every error is an answer
        return _failed(error, secrets)


class OutsideBasePath(DeltaTableNotFoundException):
    """A link leads out of the base path of a connection."""


def _read(request: Mapping[str, Any]) -> Any:
    actions: dict[str, Callable[..., Any]] = {
        "history": data.history,
        "state": table_state.table_state,
        "commit": data.commit_detail,
        "transactions": data.open_transactions,
        "rows": commit_rows.rows_of_commit,
        "staged": staged_rows.staged_rows,
    }
    log: DeltaLog = DeltaLog.for_table(request["uri"], storage_options=request.get("options") or None)
    if (base := request.get("within")) is not None:
        _hold_within(log, base)
    return actions[request["what"]](log, **request.get("arguments", {}))


def _hold_within(log: DeltaLog, base: str) -> None:
    """Refuse a local table that is not below an allowed directory, and see to it that it stays there.

    :raises OutsideBasePath: if a symbolic link leads elsewhere.
    """
    if isinstance(log.store, LocalStore):
        try:
            log.store.hold_within(local_path(base))
            for name in (LOG_DIRECTORY, STAGING_DIRECTORY):
                with contextlib.suppress(FileNotFoundError), log.store.folder(name):
                    pass
        except PathOutsideTableException:
            raise OutsideBasePath(f"{log.uri} leads out of the base path of its connection.", table=log.uri) from None


def _small_enough(result: Any) -> Any:
    """Return a result that fits into an answer: if it is too long, long texts and lists are cut.

    :raises ReadLimitException: if it is still too long.
    """
    if len(encode_json(result)) <= MAX_ANSWER:
        return result
    clipped = _clipped(result)
    if len(encode_json(clipped)) <= MAX_ANSWER:
        return clipped
    raise ReadLimitException(f"The answer is longer than {MAX_ANSWER >> 20} MiB.")


def _clipped(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= _CLIPPED_TEXT else f"{value[:_CLIPPED_TEXT]}…"
    if isinstance(value, Mapping):
        return {_clipped(key): _clipped(item) for key, item in list(value.items())[:_CLIPPED_ITEMS]}
    if isinstance(value, list | tuple):
        return [_clipped(item) for item in value[:_CLIPPED_ITEMS]]
    return value


def _failed(error: Exception, secrets: Iterable[str]) -> dict[str, Any]:
    kinds = [kind.__name__ for kind in type(error).__mro__]
    return {"kinds": kinds, "detail": masked(f"{type(error).__name__}: {error}", secrets)[:_CLIPPED_TEXT]}


def _receive(requests: BinaryIO) -> dict[str, Any] | None:
    header = requests.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    request: dict[str, Any] = decode_json(requests.read(HEADER.unpack(header)[0]))
    return request
