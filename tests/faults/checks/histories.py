"""One run with checks between its stages and its commit, in any order of retries, clears, deploys and commits of others.

Operators, contexts, notes and commits are the real ones; Airflow's rules of what is ready, and what a clear does, are below. A
judge knows what each check has read, and compares it with what was published.
"""

from __future__ import annotations

import contextlib
import copy
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import pyarrow as pa
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG

from airflow_delta.contract.audit import AuditCheck
from airflow_delta.exceptions import (
    ChecksOutdatedException,
    DeltaAuditFailedException,
    StagingException,
    UpstreamFailedException,
)
from airflow_delta.log.storage.local import LocalStore
from airflow_delta.operators.arrow import DeltaStageArrowOperator
from airflow_delta.operators.audit import DeltaAuditOperator
from airflow_delta.operators.preview import DeltaPreviewOperator
from airflow_delta.operators.transaction import DeltaCommitOperator, DeltaStartTransactionOperator
from airflow_delta.tasks.checks.seen import note_seen
from support.running_tasks import context
from support.table import Table

MOST = "1.4"
"""``max_ratio`` of the audit: ten rows and a few staged ones are near it."""

CHECKS = ("audit", "preview", "look", "other")


def rows(day: str, *ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "day": pa.array([day] * len(ids), pa.string())})


def some(count: int, day: str) -> pa.Table:
    return rows(day, *range(count))


class Audit(DeltaAuditOperator):
    """Whose SQL has passed: what it has read is what matters here."""

    def _ask(self, log: Any, table: Any, queries: Any, context: Any) -> list[AuditCheck]:
        return [AuditCheck(name=query.name, passed=True, severity="fail") for query in queries]


@dataclass
class Instance:
    """A task instance: its state, and what its newest try has read."""

    state: str | None = None
    tries: int = 0
    running: Any = None
    """Operator and context of a try that has begun."""
    read: Mapping[str, str] | None = None
    """Attempts by stage that it has read, or that are in what it has read."""
    version: int = -1
    """Newest version of the table when an audit looked."""


@dataclass
class History:
    """A run on a table of ten rows.

    :param base: an empty directory.
    :param clears: how many clears there may be.
    """

    base: Path
    supervisor: Any
    seed: int
    clears: int = 4
    others: int = 3
    told: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    refused: int = 0
    published: int | None = None

    SECOND: ClassVar[tuple[str, ...]] = ("two", "renamed")

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.supervisor.xcoms.clear()
        self.table = Table(self.base / "table")
        self.table.write(rows("a", *range(100, 105)), begin={"partition_by": ["day"]})
        self.table.write(rows("b", *range(200, 205)))
        self.meets: list[int] = []
        """Versions of others that have changed rows of the day that the audit reads."""
        self.instances: dict[str, Instance] = {}
        self.deploy("two")

    def deploy(self, second: str) -> None:
        """Make the Dag of a new Dag file; what is left of its instances stays."""
        with DAG("checked", schedule=None) as dag:
            start = DeltaStartTransactionOperator(task_id="start", table=self.table.uri)
            common = {"python_callable": some, "transaction": start.output}
            stages = [DeltaStageArrowOperator(task_id=name, **common) for name in ("one", second)]
            staged = [stage.output for stage in stages]
            audit = Audit(
                task_id="audit",
                transaction=start.output,
                staged=staged,
                rows_change={"max_ratio": MOST},
                checks={"of a day": "SELECT count(*) > 0 FROM result WHERE day = 'a'"},
                holds_at="commit",
            )
            preview = DeltaPreviewOperator(task_id="preview", transaction=start.output, staged=staged)
            look, other = EmptyOperator(task_id="look"), EmptyOperator(task_id="other")
            preview >> look
            stages >> other
            [audit, look, other] >> DeltaCommitOperator(task_id="commit", transaction=start.output, staged=staged)
        self.dag, self.stages = dag, ("one", second)
        self.instances = {name: self.instances.get(name, Instance()) for name in dag.task_dict}

    # -- Airflow's rules -------------------------------------------------------------------------------------------------------

    def ready(self) -> list[str]:
        def may_begin(name: str) -> bool:
            before = self.dag.task_dict[name].upstream_task_ids
            return self.instances[name].state is None and all(self.instances[each].state == "success" for each in before)

        return [name for name in self.dag.task_dict if may_begin(name)]

    def begin(self, name: str) -> None:
        """Begin a try: what its parameters refer to is read now."""
        instance, task = self.instances[name], self.dag.task_dict[name]
        instance.tries += 1
        states = self._states() | {name: "running"}
        found = context(task, states=states, try_number=instance.tries)
        found["ti"].id = uuid4()
        operator = copy.copy(task)
        if name in self.stages:
            operator.op_kwargs = {"count": self.random.randint(1, 3), "day": "a" if name == "one" else "b"}
        note_seen(found)
        operator.render_template_fields(found)
        instance.state, instance.running, instance.read = "running", (operator, found), None
        if name in ("audit", "preview"):
            instance.read = {write["stage"]: write["attempt"] for write in operator.staged}
        self.told.append(f"{name} begins")

    def read(self, name: str) -> None:
        """Let a task without a report read what is before it."""
        if name == "other":
            found = [self.value_of(stage) for stage in self.stages]
            self.instances[name].read = {write["stage"]: write["attempt"] for write in found if write is not None}
        else:
            shown = self.value_of("preview")  # nothing while the preview is written again
            self.instances[name].read = next(iter(shown["stages"].values()), {}) if shown is not None else {}
        self.told.append(f"{name} reads")

    def end(self, name: str) -> None:
        instance = self.instances[name]
        operator, found = instance.running
        if name in ("look", "other"):
            if instance.read is None:
                self.read(name)
        else:
            self.supervisor.states = self._states()
            instance.version = self.table.versions()[-1]
            try:
                value = operator.execute(found)
            except (DeltaAuditFailedException, StagingException) as error:
                if name == "commit":
                    raise
                instance.state, instance.running = "failed", None
                self.told.append(f"{name} refuses: {error}")
                return
            found["ti"].xcom_push(key="return_value", value=json.loads(json.dumps(value)))
        instance.state, instance.running = "success", None
        self.told.append(f"{name} ends")

    def clear(self, *names: str, downstream: bool) -> None:
        """Clear instances; a try that runs is ended, and reports nothing any more."""
        chosen = set(names)
        if downstream:
            chosen |= {each for name in names for each in self.dag.task_dict[name].get_flat_relative_ids(upstream=False)}
        for name in chosen:
            self.instances[name].state = self.instances[name].running = None
        self.told.append(f"clear of {', '.join(sorted(chosen))}")

    def zombie(self, name: str) -> None:
        """Clear a running stage or audit, whose process goes on to its end: Airflow takes nothing from it any more."""
        operator, found = self.instances[name].running
        kept = dict(self.supervisor.xcoms)
        self.clear(name, downstream=False)
        with contextlib.suppress(DeltaAuditFailedException, StagingException):
            operator.execute(found)
        self.supervisor.xcoms = kept
        self.told.append(f"a zombie of {name} ends")

    def value_of(self, name: str) -> Any:
        return self.supervisor.xcoms.get(("a_run", name, -1, "return_value"))

    def _states(self) -> dict[str, str]:
        removed = dict.fromkeys(set(self.SECOND) - set(self.stages), "removed")
        return removed | {name: it.state for name, it in self.instances.items() if it.state is not None}

    # -- others ------------------------------------------------------------------------------------------------------------------

    def other_writer(self) -> None:
        self.others -= 1
        kind = self.random.choice(("append a", "append b", "delete b"))
        before = len(self.table.versions())
        if kind == "delete b":
            log = self.table.log()
            mine = [add for add in log.update().add_files() if add.partition_values["day"] == "b"]
            self.table.commit(*(add.remove(deletion_timestamp=0) for add in mine[:1]))
        else:
            self.table.write(rows(kind[-1], 300 + before))
        if kind == "append a":
            self.meets.append(self.table.versions()[-1])
        self.told.append(f"another writer: {kind}, version {self.table.versions()[-1]}")

    # -- the commit --------------------------------------------------------------------------------------------------------------

    def commit(self, patch: Callable[..., None]) -> None:
        """Run the commit; others may be faster right before its put."""
        self.begin("commit")
        put, times = LocalStore.put_if_absent, self.random.choice((0, 0, 1, 2))

        def raced(store: Any, path: str, data: bytes, **given: Any) -> None:
            nonlocal times
            if times and self.others > 0 and path.startswith("_delta_log/") and path.endswith(".json"):
                patch(LocalStore, "put_if_absent", put)
                self.other_writer()
                times -= 1
                patch(LocalStore, "put_if_absent", raced)
            put(store, path, data, **given)

        patch(LocalStore, "put_if_absent", raced)
        try:
            self.end("commit")
        except ChecksOutdatedException as outdated:
            self.refused += 1
            self.told.append(f"refused: {outdated.message}")
            self.instances["commit"].state = "failed"
            patch(LocalStore, "put_if_absent", put)
            self.clear(*(name for name, _ in outdated.checks), downstream=True)  # on_outdated="check_again"
            return
        except UpstreamFailedException:  # a task is cleared, and what is after it is green: the commit is cleared by hand
            self.clear("commit", downstream=False)
            return
        except DeltaAuditFailedException as failed:  # rows_change does not hold any more
            self.told.append(f"refused: {failed.message}")
            self.instances["commit"].state = "failed"
            self.clears = 0
            return
        finally:
            patch(LocalStore, "put_if_absent", put)
        if self.instances["commit"].state == "success":
            self.published = self.table.versions()[-1] if self.published is None else self.published
            self.judge()

    def judge(self) -> None:
        """Compare what was published with what each check has read."""
        added = [add["path"].split("/") for add in self.table.actions(self.published)["add"]]
        attempts = {part for path in added for part in path}
        for name in CHECKS:
            read = self.instances[name].read
            if read is None or set(read) != set(self.stages):
                self.wrong.append(f"{name} has read {read}, of {self.stages}")
                continue
            self.wrong += [
                f"{name} has read attempt {attempt} of {stage}, which is not in {sorted(attempts)}"
                for stage, attempt in read.items()
                if attempt not in attempts
            ]
        looked = self.instances["audit"].version
        self.wrong += [
            f"the audit has seen version {looked}, and {met} has changed what it read before {self.published}"
            for met in self.meets
            if looked < met < self.published
        ]
        counts = [self.rows_of(version) for version in (self.published - 1, self.published)]
        if counts[1] > float(MOST) * counts[0]:
            self.wrong.append(f"{counts[0]} rows became {counts[1]} in version {self.published}")

    def rows_of(self, version: int) -> int:
        log = self.table.log()
        return sum(json.loads(add.stats)["numRecords"] for add in log.snapshot_at(version).add_files())

    def go(self, *names: str) -> None:
        """Run tasks one after another."""
        for name in names:
            self.begin(name)
            self.end(name)

    # -- the history -------------------------------------------------------------------------------------------------------------

    def step(self, patch: Callable[..., None]) -> None:
        """Let one thing happen that may happen now."""
        choices: list[Callable[[], None]] = []
        for name in self.ready():
            choices += [lambda name=name: self.commit(patch) if name == "commit" else self.begin(name)] * 4
        for name, instance in self.instances.items():
            if instance.state == "running":
                choices += [lambda name=name: self.end(name)] * 3
                if name in ("look", "other") and instance.read is None:
                    choices.append(lambda name=name: self.read(name))
                if self.clears > 0 and name not in ("start", "commit"):
                    choices.append(lambda name=name: self._count() or self.clear(name, downstream=False))
                    if name in (*self.stages, "audit"):
                        choices.append(lambda name=name: self._count() or self.zombie(name))
            elif instance.state in ("success", "failed") and self.clears > 0 and name not in ("start", "commit"):
                for downstream in (False, False, True):
                    choices.append(lambda name=name, d=downstream: self._count() or self.clear(name, downstream=d))
        if self.clears > 0 and self.stages[1] == "two":
            choices.append(lambda: self._count() or self.told.append("deploy") or self.deploy("renamed"))
        if self.others > 0:
            choices.append(self.other_writer)
        if choices:
            self.random.choice(choices)()

    def _count(self) -> None:
        self.clears -= 1

    def run(self, patch: Callable[..., None]) -> list[str]:
        """Run the history to its end; return what is wrong."""
        for _ in range(120):
            if self.instances["commit"].state == "success" or self.wrong:
                return self.wrong
            if "failed" in {it.state for it in self.instances.values()} and self.clears == 0:
                return self.wrong
            self.step(patch)
        return [*self.wrong, "it has not come to an end"]
