"""The API server's processes that read logs (:mod:`airflow_delta.ui.reader.worker`): started on demand, kept warm, and killed if
one takes too long or too much memory.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import airflow_delta
from airflow_delta.contract.location import HDFS, store_of
from airflow_delta.exceptions import ReadLimitException
from airflow_delta.hooks.allowed import API_SERVER, Allowed
from airflow_delta.log.storage.options import HDFS_USER
from airflow_delta.ui.reader.messages import HEADER, decode_json, framed

MAX_MEMORY = 1 << 30
"""Maximum memory of a reader, in bytes."""

WARM = 2
"""Idle readers that are kept."""

_MAX_READS = 500
_TIDY_MEMORY = 256 << 20
"""A reader that uses more after its work is not kept."""

_LOOK = 0.1
_PAGE = os.sysconf("SC_PAGE_SIZE")
_START = "import sys; sys.path.append(sys.argv[1]); from airflow_delta.ui.reader.worker import main; main()"


_CLOUDS = ("AWS_", "AZURE_", "AZURITE_", "GOOGLE_")


def environment() -> dict[str, str]:
    """Return the environment of a reader.

    It needs none of Airflow's settings (database, keys, connections), and of the clouds' only if connections may use the API
    server's own credentials: the client would add them to those of a connection.
    """
    allowed = Allowed.here(API_SERVER).has_process
    return {
        name: value
        for name, value in os.environ.items()
        if "AIRFLOW" not in name and (allowed or not name.upper().startswith(_CLOUDS))
    }


class ReaderDiedError(OSError):
    """A reader ended without an answer."""


class Reader:
    """A process that answers one request after the other."""

    def __init__(self) -> None:
        root = str(Path(airflow_delta.__file__).parents[1])
        self._process = subprocess.Popen(  # noqa: S603 - this interpreter, with nothing of a request
            [sys.executable, "-P", "-W", "ignore", "-c", _START, root],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment(),
            cwd="/",
        )
        self._reads = 0

    def ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Return the answer to a request; after any error the process is gone.

        :raises TimeoutError: if there was none within ``seconds``.
        """
        self._reads += 1
        try:
            return self._ask(request, time.monotonic() + seconds)
        except BaseException:
            self.stop()
            raise

    def _ask(self, request: dict[str, Any], deadline: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(framed(request))
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise ReaderDiedError(f"The reader ended with exit code {self._process.wait()}.") from error
        descriptor = self._process.stdout.fileno()
        poll = select.poll()  # not select: an API server may have many files open
        poll.register(descriptor, select.POLLIN | select.POLLHUP)
        received = bytearray()
        while True:
            if poll.poll(1000 * max(min(_LOOK, deadline - time.monotonic()), 0)):
                chunk = os.read(descriptor, 1 << 20)
                if not chunk:
                    raise ReaderDiedError(f"The reader ended with exit code {self._process.wait()}.")
                received += chunk
                if len(received) >= HEADER.size and len(received) - HEADER.size >= HEADER.unpack_from(received)[0]:
                    answer: dict[str, Any] = decode_json(received[HEADER.size :])
                    return answer
                continue
            if (used := self.memory()) > MAX_MEMORY:
                raise ReadLimitException(
                    f"Reading table {request['uri']} takes more than {MAX_MEMORY >> 20} MiB ({used >> 20} MiB so far)."
                )
            if time.monotonic() >= deadline:
                raise TimeoutError

    def memory(self) -> int:
        """Return the memory of the process in bytes; 0 if it has ended."""
        try:
            return int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]) * _PAGE
        except (OSError, IndexError):
            return 0

    @property
    def is_fit(self) -> bool:
        """Whether the process is worth keeping."""
        return self._process.poll() is None and self._reads < _MAX_READS and 0 < self.memory() < _TIDY_MEMORY

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._process.wait()


class Readers:
    """The readers of one API server process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[tuple[str, Reader]] = []

    def ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Return the answer of an idle reader or a new one; raises as :meth:`Reader.ask` does."""
        identity = identity_of(request)
        with self._lock:
            at = next((at for at, (known, _) in enumerate(self._idle) if known == identity), None)
            reader = self._idle.pop(at)[1] if at is not None else None
        if reader is not None and not reader.is_fit:
            reader.stop()
            reader = None
        reader = reader or Reader()
        answer = reader.ask({**request, "seconds": seconds}, seconds)
        stopped = None
        with self._lock:
            if reader.is_fit:
                self._idle.append((identity, reader))
                stopped = self._idle.pop(0)[1] if len(self._idle) > WARM else None
            else:
                stopped = reader
        if stopped is not None:
            stopped.stop()
        return answer

    def stop(self) -> None:
        """End the idle readers."""
        with self._lock:
            idle, self._idle = self._idle, []
        for _, reader in idle:
            reader.stop()


def identity_of(request: Mapping[str, Any]) -> str:
    """Return who a reader is while it answers a request: HDFS knows one user for each process."""
    return f"{HDFS} {(request.get('options') or {}).get(HDFS_USER) or ''}" if store_of(str(request["uri"])) == HDFS else ""


_lock = threading.Lock()
_readers: tuple[int, Readers] | None = None


def readers() -> Readers:
    """Return the readers of this process, not those of a process that it was forked from."""
    global _readers
    with _lock:
        if _readers is None or _readers[0] != os.getpid():
            _readers = (os.getpid(), Readers())
            atexit.register(_readers[1].stop)
        return _readers[1]
