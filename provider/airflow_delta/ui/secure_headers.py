"""Security headers of every response: no content from other hosts, no frames of others, no cache."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

_HEADERS = {
    b"content-security-policy": (
        b"default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
        b"frame-ancestors 'self'; base-uri 'none'"
    ),
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"SAMEORIGIN",
    b"referrer-policy": b"same-origin",
    b"cache-control": b"private, no-store",
}

Message = MutableMapping[str, Any]


class SecureHeaders:
    """ASGI middleware that adds security headers to every response."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(
        self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        """Call the app and add the headers to its response."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name.lower() for name, _ in message["headers"]}
                static = scope["path"].startswith(f"{scope.get('root_path', '')}/static/")
                added = [
                    (name, b"private, max-age=300" if static and name == b"cache-control" else value)
                    for name, value in _HEADERS.items()
                    if name not in given
                ]
                message["headers"] = [*message["headers"], *added]
            await send(message)

        await self.app(scope, receive, send_with_headers)
