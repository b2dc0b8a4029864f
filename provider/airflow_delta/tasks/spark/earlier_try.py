"""Take over what an earlier try of a task submitted before its worker was lost.

Before a try submits its application, it notes in Airflow's task state store which request it puts on storage; the application
leaves its report beside that request. So no application ever runs unnoticed, whatever the deploy mode. Taking over only saves
work: an attempt writes below its own directory, and only what the task returns is published. In doubt, the job is submitted
again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import psutil  # type: ignore[import-untyped]

from airflow_delta import engine
from airflow_delta.exceptions import DeltaError, DeltaIllegalStateException

if TYPE_CHECKING:
    from logging import Logger

    from airflow_delta.contract.request import StageReport, StageRequest
    from airflow_delta.log.delta_log import DeltaLog


REQUEST_KEY = "delta_stage_request"
"""Key in the task state store: transaction, directory of the attempt, and a digest of the application's inputs."""

_POLL = 2.0
_TELL_EVERY = 60.0


def inputs_of(values: Mapping[str, Any]) -> str:
    """Return a digest of what an application is submitted with; the values may be secret."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()[:32]


def note_request(store: Any, request: StageRequest, inputs: str) -> None:
    """Note what is about to be submitted. Airflow refuses this from an attempt that it has given up."""
    if store is not None:
        note = {"transactionId": request.transaction_id, "directory": request.directory, "inputs": inputs}
        store.set(REQUEST_KEY, note)


def noted_directory(store: Any, transaction_id: str, inputs: str) -> str | None:
    """Return the directory of the attempt that an earlier try submitted for this transaction with these inputs."""
    note = store.get(REQUEST_KEY) if store is not None else None
    if not isinstance(note, Mapping) or note.get("transactionId") != transaction_id:
        return None
    return str(note["directory"]) if note.get("inputs", inputs) == inputs else None


class EarlierTry:
    """An attempt of an earlier try at the same work.

    :param request: its request.
    """

    def __init__(self, log: DeltaLog, request: StageRequest, logger: Logger | Any) -> None:
        self.request = request
        self._log = log
        self._logger = logger
        self._killed = False

    def kill(self) -> None:
        """End the application that :meth:`report` waits for."""
        self._killed = True
        for process in self._applications():
            with contextlib.suppress(psutil.Error):  # it may have ended meanwhile, with its parent
                process.kill()

    def report(self) -> StageReport | None:
        """Return what the attempt staged; ``None`` if it failed, or nothing shows that it is still running.

        Waits for an application that still runs on this machine without the worker that submitted it.

        :raises DeltaIllegalStateException: if the task is stopped meanwhile.
        """
        told = 0.0
        while (report := self._finished()) is None and not self._killed and self._applications():
            if time.monotonic() - told > _TELL_EVERY:
                told = time.monotonic()
                self._logger.info(
                    "Transaction %s: attempt %s of stage %s, submitted by an earlier try, is still running here: waiting for it.",
                    self.request.transaction_id,
                    self.request.attempt,
                    self.request.stage,
                )
            time.sleep(_POLL)
        if self._killed:
            raise self._log.error(
                DeltaIllegalStateException,
                f"The task was told to stop while it waited for attempt {self.request.attempt} of stage {self.request.stage}.",
            )
        report = report or self._finished()
        if report is not None:
            self._logger.info(
                "Transaction %s: attempt %s of stage %s, submitted by an earlier try, has ended: collecting what it staged.",
                self.request.transaction_id,
                self.request.attempt,
                self.request.stage,
            )
        return report

    def _finished(self) -> StageReport | None:
        try:
            report = engine.read_report(self._log, self.request)
        except DeltaError:  # missing, incomplete, or the report of a failure
            return None
        same = (report.transaction_id, report.attempt) == (self.request.transaction_id, self.request.attempt)
        return report if same else None

    def _applications(self) -> list[Any]:
        """Return this user's processes on this machine that were started with the request as an argument."""
        wanted = f"{self.request.path}/"
        found = []
        for process in psutil.process_iter(["cmdline", "uids"]):
            uids = process.info["uids"]
            own = process.pid != os.getpid() and uids is not None and uids.real == os.getuid()
            if own and any(wanted in argument for argument in process.info["cmdline"] or ()):
                found.append(process)
        return found


def earlier_try(log: DeltaLog, directory: str, request: StageRequest, logger: Logger | Any) -> EarlierTry | None:
    """Return the attempt in a directory if its request equals that of this try.

    :param request: the request of this try; only the name of the attempt may differ.
    """
    try:
        asked = engine.read_request(log, directory)
    except DeltaError:  # the worker was lost before it put the request, or an abort deleted it
        return None
    return EarlierTry(log, asked, logger) if _work(asked) == _work(request) else None


def _work(request: StageRequest) -> str:
    value = request.to_dict()
    for name in ("attempt", "directory"):
        value.pop(name)
    return json.dumps(value, sort_keys=True)
