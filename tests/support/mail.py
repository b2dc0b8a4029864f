"""A mail server on loopback that keeps what it gets."""

from __future__ import annotations

import email
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message


class _Session(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        self._say("220 loopback")
        for line in self.rfile:
            command = line.split()[0].upper() if line.split() else b""
            if command == b"DATA":
                self._say("354 go on")
                text = b"".join(iter(self.rfile.readline, b".\r\n"))
                self.server.messages.append(email.message_from_bytes(text))
            self._say("221 bye" if command == b"QUIT" else "250 ok")
            if command == b"QUIT":
                return

    def _say(self, line: str) -> None:
        self.wfile.write(f"{line}\r\n".encode())


class MailServer(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Session)
        self.messages: list[Message] = []
        self.port = self.server_address[1]


@contextmanager
def mail_server() -> Iterator[MailServer]:
    with MailServer() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
