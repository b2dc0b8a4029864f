"""Server processes on loopback: started, waited for, and ended with everything that they started."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import psutil

ROOT = Path(__file__).parents[2]
GUARD = ROOT / "dags_examples" / "demo" / "guard.py"
"""Ends what it started when this process ends, however that happens."""

LOOPBACK = "127.0.0.1"
TIMEOUT = 60.0
_POLL = 0.02

_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class ServiceError(Exception):
    """A server did not start, or ended by itself; the message has the end of its log."""


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def answers(url: str) -> bool:
    """Return whether an HTTP server answers at a URL, with whatever status."""
    try:
        _direct.open(url, timeout=5).close()
    except urllib.error.HTTPError as error:
        error.close()
    except OSError:
        return False
    return True


def listens(port: int) -> bool:
    """Return whether somebody accepts connections on a port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((LOOPBACK, port)) == 0


class Service:
    """One server.

    :param name: names the log and the errors.
    :param argv: the command.
    :param directory: an existing directory for the log; the working directory of the process.
    :param ready: when the server can be used.
    :param environment: variables to add; ``None`` removes one.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        directory: Path,
        ready: Callable[[], bool],
        environment: Mapping[str, str | None] | None = None,
    ) -> None:
        self.name, self.argv, self.directory = name, list(map(str, argv)), directory
        self.startup_seconds = 0.0
        self._ready = ready
        self._environment = {key: value for key, value in {**os.environ, **(environment or {})}.items() if value is not None}
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """Where the server writes its output."""
        return self.directory / f"{self.name}.log"

    @property
    def process(self) -> psutil.Process:
        """The server's own process."""
        return psutil.Process(int(self._pid_file.read_text()))

    @property
    def memory(self) -> int:
        """Resident bytes of the server and its descendants."""
        server = self.process
        total = 0
        for process in (server, *server.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                total += int(process.memory_info().rss)
        return total

    def start(self, timeout: float = TIMEOUT) -> Self:
        """Start the server; returns when it is ready.

        :raises ServiceError: if it ended, or was not ready in time.
        """
        self._pid_file.unlink(missing_ok=True)
        begun = time.monotonic()
        self._guard = subprocess.Popen(
            [sys.executable, str(GUARD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=self.directory,
            env=self._environment,
            start_new_session=True,
        )
        noted = ["sh", "-c", 'echo $$ > "$0"; exec "$@"', str(self._pid_file), *self.argv]
        command = {"name": self.name, "argv": noted, "log": str(self.log)}
        assert self._guard.stdin is not None
        self._guard.stdin.write(json.dumps(command).encode() + b"\n")
        self._guard.stdin.flush()
        try:
            self._wait(begun + timeout)
        except BaseException:
            self.stop()
            raise
        self.startup_seconds = time.monotonic() - begun
        return self

    def stop(self) -> None:
        """End the server and its descendants; returns when none is left."""
        if self._guard is None:
            return
        assert self._guard.stdin is not None
        assert self._guard.stdout is not None
        with contextlib.suppress(OSError):
            self._guard.stdin.close()
        self._guard.wait()
        self._guard.stdout.close()
        self._guard = None

    def kill(self) -> None:
        """End the server and its descendants with SIGKILL, as the machine's end would; returns when they are gone."""
        server = self.process
        killed = [server, *server.children(recursive=True)]
        for process in killed:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(killed, timeout=30)
        self.stop()

    def tail(self, lines: int = 30) -> str:
        """Return the end of the log."""
        text = self.log.read_text(errors="replace").splitlines()[-lines:] if self.log.exists() else []
        return "\n".join([f"The end of {self.log}:", *(f"    {line}" for line in text)])

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: Any) -> None:
        self.stop()

    @property
    def _pid_file(self) -> Path:
        return self.directory / f"{self.name}.pid"

    def _running(self) -> bool:
        try:
            return self.process.status() != psutil.STATUS_ZOMBIE
        except (psutil.NoSuchProcess, FileNotFoundError, ValueError):
            return False

    def _wait(self, deadline: float) -> None:
        started = False
        while not (started and self._ready()):
            if started and not self._running():
                raise ServiceError(f"{self.name} ended by itself.\n{self.tail()}")
            if time.monotonic() > deadline:
                raise ServiceError(f"{self.name} was not ready in time.\n{self.tail()}")
            started = started or self._running()
            time.sleep(_POLL)
