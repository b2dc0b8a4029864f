"""Answers of HTTP servers, bounded as a whole.

httpx limits the time between two bytes, not that of an answer, and unpacks what it gets: a server that sends a byte a second is
waited for without end, and a few kilobytes become gigabytes.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import httpx

SECONDS = 120.0
"""Time of a request with its answer, from the look-up of the host's name on."""

MOST_BYTES = 64 << 20
"""Size of an answer, unpacked."""


class AnswerTooLargeError(httpx.RequestError):
    """A server sends more than an answer may have; what it was asked for may have happened."""


def request(client: httpx.Client, method: str, path: str, *, headers: Mapping[str, str], **given: Any) -> httpx.Response:
    """Send a request and return its whole answer.

    :param given: for :meth:`httpx.Client.stream`.
    :raises httpx.ReadTimeout: if it takes more than :data:`SECONDS`; what was asked for may have happened.
    :raises AnswerTooLargeError: if it has more than :data:`MOST_BYTES`, or is packed in a way that cannot be bounded.
    """
    found: list[httpx.Response | Exception] = []
    given_up = threading.Event()

    def ask() -> None:
        try:
            with client.stream(method, path, headers={**headers, "Accept-Encoding": "gzip"}, **given) as response:
                found.append(_whole(response, given_up))
        except Exception as error:  # noqa: BLE001 - raised below
            found.append(error)

    # Nothing in httpx ends a read of headers that trickle; the thread ends at the latest with the connection or the process.
    asking = threading.Thread(target=ask, name="airflow-delta-http", daemon=True)
    asking.start()
    try:
        asking.join(SECONDS)
    finally:
        given_up.set()
    if not found:
        raise httpx.ReadTimeout(f"the answer was not whole after {SECONDS:g} s")
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]


def _whole(response: httpx.Response, given_up: threading.Event) -> httpx.Response:
    packed = response.headers.get("Content-Encoding", "identity").strip().lower()
    if packed not in ("identity", "gzip"):  # others unpack a piece to more than memory holds
        raise AnswerTooLargeError(f"the answer is packed as {packed!r}, not gzip", request=response.request)
    parts, size = [], 0
    for part in response.iter_bytes():
        size += len(part)
        if size > MOST_BYTES:
            raise AnswerTooLargeError(f"the answer has more than {MOST_BYTES >> 20} MiB", request=response.request)
        if given_up.is_set():
            break
        parts.append(part)
    headers = {"Content-Type": response.headers.get("Content-Type", "")}
    return httpx.Response(response.status_code, headers=headers, content=b"".join(parts), request=response.request)
