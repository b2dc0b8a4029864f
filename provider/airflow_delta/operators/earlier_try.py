"""What an earlier try of a task had submitted, when its worker was gone before it ended.

The channel is the task's own: a note in Airflow's task state store says which request the try puts on storage *before* it submits
the application, and the application leaves its report beside that request. So there is no moment at which an application runs and
nobody knows of it, whatever the deploy mode. Taking over saves work and is never needed: an attempt writes below its own
directory, and only what the task returns is published. Whatever is in doubt is done anew, beside.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_delta.exceptions import DeltaError, DeltaIllegalStateException

if TYPE_CHECKING:
    from logging import Logger

    from airflow_delta.log import DeltaLog
    from airflow_delta.staging.report import StageReport, StageRequest

REQUEST_KEY = "delta_stage_request"
"""Key in the task state store: transaction, directory of the attempt, and what the application was given."""

_POLL = 2.0
_TELL_EVERY = 60.0


def inputs_of(values: Mapping[str, Any]) -> str:
    """Return a digest of what an application is submitted with; what it says may be secret."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()[:32]


def note_request(store: Any, request: StageRequest, inputs: str) -> None:
    """Note what is about to be submitted. Airflow refuses this to an attempt that it has given up."""
    if store is not None:
        note = {"transactionId": request.transaction_id, "directory": request.directory, "inputs": inputs}
        store.set(REQUEST_KEY, note)


def noted_directory(store: Any, transaction_id: str, inputs: str) -> str | None:
    """Return the directory of the attempt that an earlier try had submitted for this transaction, with these inputs."""
    note = store.get(REQUEST_KEY) if store is not None else None
    if not isinstance(note, Mapping) or note.get("transactionId") != transaction_id:
        return None
    return str(note["directory"]) if note.get("inputs", inputs) == inputs else None


class EarlierTry:
    """An attempt of an earlier try that was asked for the very same work.

    :param request: what it was asked for.
    """

    def __init__(self, log: DeltaLog, request: StageRequest, logger: Logger | Any) -> None:
        self.request = request
        self._log = log
        self._logger = logger
        self._killed = False

    def kill(self) -> None:
        """End the application that :meth:`report` waits for."""
        import psutil  # type: ignore[import-untyped]

        self._killed = True
        for process in self._applications():
            with contextlib.suppress(psutil.Error):  # it may have ended meanwhile, with its parent
                process.kill()

    def report(self) -> StageReport | None:
        """Return what the attempt has staged; ``None`` when it did not succeed, or nothing shows that it is still at work.

        An application that still runs on this machine, without the worker that submitted it, is waited for.

        :raises DeltaIllegalStateException: the task was told to stop meanwhile.
        """
        told = 0.0
        while (report := self._finished()) is None and not self._killed and self._applications():
            if time.monotonic() - told > _TELL_EVERY:
                told = time.monotonic()
                self._logger.info(
                    "Transaction %s: attempt %s of stage %s, which an earlier try submitted, still runs here: waiting for it.",
                    self.request.transaction_id,
                    self.request.attempt,
                    self.request.stage,
                )
            time.sleep(_POLL)
        if self._killed:
            raise DeltaIllegalStateException(
                f"The task was told to stop while it waited for attempt {self.request.attempt} of stage {self.request.stage}.",
                table=self._log.uri,
            )
        report = report or self._finished()
        if report is not None:
            self._logger.info(
                "Transaction %s: attempt %s of stage %s, which an earlier try submitted, ended without its worker: collecting "
                "what it staged.",
                self.request.transaction_id,
                self.request.attempt,
                self.request.stage,
            )
        return report

    def _finished(self) -> StageReport | None:
        from airflow_delta.commands.write.plan_write import read_report

        try:
            report = read_report(self._log, self.request)
        except DeltaError:  # none yet, half of one, or that of a failure
            return None
        same = (report.transaction_id, report.attempt) == (self.request.transaction_id, self.request.attempt)
        return report if same else None

    def _applications(self) -> list[Any]:
        """Return the processes of this machine and user that were started with the request as an argument."""
        import psutil

        wanted = f"{self.request.path}/"
        found = []
        for process in psutil.process_iter(["cmdline", "uids"]):
            uids = process.info["uids"]
            own = process.pid != os.getpid() and uids is not None and uids.real == os.getuid()
            if own and any(wanted in argument for argument in process.info["cmdline"] or ()):
                found.append(process)
        return found


def earlier_try(log: DeltaLog, directory: str, request: StageRequest, logger: Logger | Any) -> EarlierTry | None:
    """Return the attempt in a directory, if it was asked for what is to be asked for now.

    :param request: what this try would ask for; nothing but the name of the attempt may differ.
    """
    from airflow_delta.commands.write.plan_write import read_request

    try:
        asked = read_request(log, directory)
    except DeltaError:  # the worker was gone before it had put the request, or an abort deleted it
        return None
    return EarlierTry(log, asked, logger) if _work(asked) == _work(request) else None


def _work(request: StageRequest) -> str:
    value = request.to_dict()
    for name in ("attempt", "directory"):
        value.pop(name)
    return json.dumps(value, sort_keys=True)
