"""Start processes, and let none of them outlive the one that asked for them.

Runs as a process of its own, in its own session. Its standard input is a pipe from the driver: each line is a command to start,
and the end of the pipe, which comes however the driver ends (by SIGKILL, too), stops everything that was started, with all
descendants. Its standard output says which commands ended. On Linux orphans become children of this process, so none escapes.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from typing import Any

import psutil

GRACE = 5.0  # seconds between SIGTERM and SIGKILL
TICK = 0.25  # seconds
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def prctl(option: int, value: int) -> bool:
    """Call Linux's ``prctl``; elsewhere return False."""
    return sys.platform == "linux" and ctypes.CDLL(None).prctl(option, value, 0, 0, 0) == 0


class Guard:
    """The processes that were started, and their descendants."""

    def __init__(self) -> None:
        self._adopts = prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._started: dict[int, tuple[str, subprocess.Popen[bytes]]] = {}
        self._seen: set[psutil.Process] = set()

    def start(self, name: str, argv: list[str], log: str) -> None:
        with open(log, "ab") as output:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGTERM),
            )
        self._started[process.pid] = (name, process)

    def reap(self) -> list[dict[str, Any]]:
        """Return which commands ended since the last call; adopted orphans are waited for as well."""
        if not self._adopts:
            self._seen.update(psutil.Process().children(recursive=True))
        ended = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return ended
            if pid == 0:
                return ended
            if pid in self._started:
                name, process = self._started.pop(pid)
                process.returncode = os.waitstatus_to_exitcode(status)
                ended.append({"name": name, "code": process.returncode})

    def alive(self) -> list[psutil.Process]:
        self.reap()
        found = {*psutil.Process().children(recursive=True), *self._seen}
        return [process for process in found if process.is_running()]

    def stop(self) -> None:
        """Stop everything: first asked, then forced, until nothing is left."""
        deadline = time.monotonic() + GRACE
        asked: set[psutil.Process] = set()
        while alive := self.alive():
            force = time.monotonic() > deadline
            for process in alive:
                if force or process not in asked:
                    asked.add(process)
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.send_signal(signal.SIGKILL if force else signal.SIGTERM)
            time.sleep(0.1)


def _say(event: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # nobody listens any more: the end of the pipe follows
        os.write(sys.stdout.fileno(), json.dumps(event).encode() + b"\n")


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stopped = False

    def on_signal(*_: object) -> None:
        nonlocal stopped
        stopped = True

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    guard = Guard()
    commands = selectors.DefaultSelector()
    commands.register(sys.stdin.fileno(), selectors.EVENT_READ)
    pending = b""
    while not stopped:
        if commands.select(TICK):
            data = os.read(sys.stdin.fileno(), 65536)
            if not data:
                break
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                guard.start(**json.loads(line))
        for event in guard.reap():
            _say(event)
    guard.stop()


if __name__ == "__main__":
    main()
