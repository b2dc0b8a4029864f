"""The few requests to an API server that the tests and their node need."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any


class Client:
    """A client of an API server.

    :param url: of the server.
    :param certificate: file of the authority that it trusts.
    :param token: with which it says who it is.
    """

    def __init__(self, url: str, certificate: Path | None = None, token: str = "") -> None:
        self._url, self._certificate, self._token = url, certificate, token
        self._opener: urllib.request.OpenerDirector | None = None

    def get(self, path: str) -> Any:
        """Return an object, or a list of them."""
        return self.send("GET", path)

    def send(self, method: str, path: str, body: Any = None, *, kind: str = "application/json") -> Any:
        """Return what the server answers to a request.

        :raises urllib.error.HTTPError: if it refuses; what it says is in the error's notes.
        """
        headers = {"Content-Type": kind} | ({"Authorization": f"Bearer {self._token}"} if self._token else {})
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self._url}{path}", data, headers, method=method)
        try:
            with self._open().open(request, timeout=30) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                error.add_note(error.read().decode(errors="replace")[:2000])
            raise

    def answers(self, path: str) -> bool:
        """Return whether the server answers, without an error."""
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        try:
            self._open().open(urllib.request.Request(f"{self._url}{path}", headers=headers), timeout=5).close()
        except urllib.error.HTTPError as error:
            error.close()
            return False
        except OSError:
            return False
        return True

    def _open(self) -> urllib.request.OpenerDirector:
        if self._opener is None:
            handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
            if self._certificate is not None:
                handlers.append(urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=str(self._certificate))))
            self._opener = urllib.request.build_opener(*handlers)
        return self._opener
