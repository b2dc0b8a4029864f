"""What goes wrong in a task, and where: asked for in the ``conf`` of a Dag run, so that one Dag serves many scenarios.

``{"faults": {"commit.before_put": "kill"}}`` kills the commit task right before it puts the log entry, in its first try.

=====================  ========================================================================================
point                  when
=====================  ========================================================================================
``stage.begin``        before the stage does anything
``stage.staged``       after the stage wrote its files, before its XCom is pushed
``audit``              in the task between stage and commit
``commit.begin``       before the commit looks at anything
``commit.before_put``  in the commit loop, right before the log entry is put
``commit.logged``      after the log entry was put, in the post-commit hooks
``commit.done``        after the commit is done, before its XCom is pushed
=====================  ========================================================================================

=============  ==================================================================================================
fault          what happens
=============  ==================================================================================================
``raise``      an exception that a retry may get over
``fail``       an exception after which Airflow does not retry
``kill``       SIGKILL of the task's process
``hold``       the task waits until the test opens the gate
``freeze``     the task's supervisor is stopped (SIGSTOP): no heartbeat leaves this task any more; the task waits at the gate
=============  ==================================================================================================

``point[2]`` is map index 2 alone. Faults happen in the first try only.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow.sdk import get_current_context
from airflow.sdk.exceptions import AirflowFailException

from airflow_delta.operators.publication import DeltaCommitPublicationOperator
from airflow_delta.operators.transaction import DeltaCommitOperator
from airflow_delta.tasks.commit.commit_part import CommitPart
from live.names import gate_name

GATE_TIMEOUT = 400  # seconds


def at(point: str) -> Callable[..., None]:
    """Return a ``pre_execute`` or ``post_execute`` hook that is a point."""

    def hook(context: Any, _result: Any = None) -> None:
        strike(point, context)

    return hook


def strike(point: str, context: Any) -> None:
    """Do what the run asks for at a point."""
    ti = context["ti"]
    faults = (context["dag_run"].conf or {}).get("faults") or {}
    if ti.map_index is not None and ti.map_index >= 0 and f"{point}[{ti.map_index}]" in faults:
        point = f"{point}[{ti.map_index}]"
    fault = faults.get(point)
    if fault is None or ti.try_number != 1:
        return
    print(f"Fault at {point}: {fault}", flush=True)
    if fault == "raise":
        raise RuntimeError(f"the scenario wants an error at {point}")
    if fault == "fail":
        raise AirflowFailException(f"the scenario wants the task to fail at {point}")
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "freeze":
        os.kill(os.getppid(), signal.SIGSTOP)
    _wait_at_gate(gate_name(ti.run_id, point))


def _wait_at_gate(name: str) -> None:
    gates = Path(os.environ["LIVE_GATES"])
    draft = gates / f"{name}.{os.getpid()}"
    draft.write_text(json.dumps({"task": os.getpid(), "supervisor": os.getppid()}))
    draft.replace(gates / f"{name}.reached")
    deadline = time.monotonic() + GATE_TIMEOUT
    while not (gates / f"{name}.open").exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the gate {name} was not opened in {GATE_TIMEOUT} s")
        time.sleep(0.2)


def logged() -> Any:
    """Return a post-commit hook that is a point. Its class is made here, so that parsing a Dag loads no engine."""
    from airflow_delta.transaction import PostCommitHook

    class Logged(PostCommitHook):
        name = "the point commit.logged"

        def run(self, txn: Any, version: int, actions: Any) -> None:
            strike("commit.logged", get_current_context())

    return Logged()


class FaultyCommit:
    """A commit with its points: they are in its committer's policy (``cancelled``) and in a post-commit hook."""

    def execute(self, context: Any) -> Any:
        strike("commit.begin", context)
        self.post_commit_hooks = [*self.post_commit_hooks, logged()]
        result = super().execute(context)
        strike("commit.done", context)
        return result

    def hold(self, part: Any) -> Any:
        return super().hold(FaultyCommitter if part is CommitPart else part)


class FaultyCommitOperator(FaultyCommit, DeltaCommitOperator):
    """The commit of a transaction."""


class FaultyCommitPublicationOperator(FaultyCommit, DeltaCommitPublicationOperator):
    """The commit of a publication; ``commit.logged`` is first reached after the decision, before the other tables."""


class FaultyCommitter(CommitPart):
    def policy(self) -> Any:
        policy = super().policy()

        def cancelled() -> bool:
            strike("commit.before_put", get_current_context())
            return policy.cancelled is not None and policy.cancelled()

        return replace(policy, cancelled=cancelled)


def install() -> None:
    """Let ``delta_transaction`` and ``delta_publication`` make commits with points, in this process."""
    from airflow_delta import publication_groups, task_groups

    publication_groups.DeltaCommitPublicationOperator = FaultyCommitPublicationOperator  # type: ignore[misc]
    task_groups.DeltaCommitOperator = FaultyCommitOperator  # type: ignore[misc]
