"""``delta_transaction``: one Delta transaction around the tasks of a group."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar

import attrs
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import TaskGroup, TriggerRule, XComArg

from airflow_delta.contract.kinds import table_text
from airflow_delta.contract.near_words import near_words
from airflow_delta.dag_checks import check_dag_overwrites
from airflow_delta.dag_rules.wiring import role_of
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.links.pages import PAGE_KEY
from airflow_delta.operators.preview import DeltaPreviewOperator
from airflow_delta.operators.transaction import DeltaAbortOperator, DeltaCommitOperator, DeltaStartTransactionOperator
from airflow_delta.tasks.keys.mapped_value import check_group
from airflow_delta.tasks.outlets import listed, table_outlets, withdraw_default_outlets
from airflow_delta.tasks.partition_events import check_outlets
from airflow_delta.tasks.settings import SENSOR_MODES, WATCHER_SETTINGS, take_own_mode, withdraw_defaults_outlets

_AS_START: dict[str, Any] = {"table": None, "delta_conn_id": None}
"""The table is that of the start task, whatever ``default_args`` name."""


@attrs.define(kw_only=True, repr=False)
class DeltaTransactionGroup(TaskGroup):
    """Task group of one transaction; made by :func:`delta_transaction`.

    ``start`` runs before everything in the group, ``commit`` runs last and publishes the stages, ``abort`` is the teardown. The
    scheduler alone sets the state of ``watcher``: it fails the run if ``abort`` fails.
    Stages inside get the handle automatically; ``transaction`` is for other tasks that need it.
    """

    holds_transaction: ClassVar[bool] = True

    start_kwargs: dict[str, Any] = attrs.field(factory=dict)
    commit_kwargs: dict[str, Any] = attrs.field(factory=dict)
    stage_kwargs: dict[str, Any] = attrs.field(factory=dict)
    preview_kwargs: dict[str, Any] | None = attrs.field(default=None)
    start: Any = attrs.field(default=None, init=False)
    commit: Any = attrs.field(default=None, init=False)
    abort: Any = attrs.field(default=None, init=False)
    publication: Any = attrs.field(default=None, init=False)
    """The :class:`~airflow_delta.publication_groups.DeltaPublicationGroup` that commits the stages instead."""
    stages: list[Any] = attrs.field(factory=list, init=False)
    audits: list[Any] = attrs.field(factory=list, init=False)
    _preview: Any = attrs.field(default=None, init=False)
    _common_args: dict[str, Any] = attrs.field(factory=dict, init=False)

    @property
    def transaction(self) -> XComArg:
        """The handle, the output of the start task."""
        return XComArg(self.start)

    @property
    def page(self) -> XComArg:
        """The URL of the page that shows what the transaction would publish, for the body of an approval or a message.

        In a text, it is a template: ``body=f"[What would be published]({txn.page})"``.
        """
        return XComArg(self.start, key=PAGE_KEY)

    @property
    def preview(self) -> XComArg:
        """The output of the preview task, with the location of what is staged as ``path``; only with ``preview``.

        :raises DeltaIllegalArgumentException: if the group was made without it.
        """
        if self._preview is None:
            raise DeltaIllegalArgumentException(
                f"The transaction {self.group_id!r} has no preview. Pass preview=True to delta_transaction."
            )
        return XComArg(self._preview)

    @property
    def result(self) -> XComArg:
        """The commit's result; only after the ``with`` block. In a publication, that has it."""
        if self.publication is not None:
            raise DeltaIllegalArgumentException(
                f"The transaction {self.group_id!r} has no commit of its own: the publication {self.publication.group_id!r} "
                "commits all its tables at once. Use the result of the publication."
            )
        return XComArg(self.commit)

    def __enter__(self) -> DeltaTransactionGroup:
        self.publication = _publication_around(self)
        if self.publication is not None:
            self.publication.admit(self)
        if (expanded := next(self.iter_mapped_task_groups(), None)) is not None:
            check_group(str(self.group_id), expanded, self.start_kwargs)
        super().__enter__()
        try:
            self.start = DeltaStartTransactionOperator(task_id="start", **self.start_kwargs)
        except BaseException:  # no __exit__ follows, and other Dags of this process would be inside of this group
            super().__exit__(*sys.exc_info())  # type: ignore[no-untyped-call]
            raise
        # Not for start, commit and abort: with a trigger rule of the stages, the commit would publish what an audit refused.
        if self.preview_kwargs is not None:
            self._preview = DeltaPreviewOperator(task_id="preview", **_AS_START, **self.preview_kwargs)
        self._common_args = self.default_args
        # Those of the Dag may name another table than this transaction's.
        own: dict[str, Any] = {name: self.start_kwargs[name] for name in ("table", "delta_conn_id") if name in defaults_in(self)}
        # The mode would be that of sensors, too; one that is a default of all tasks is meant for them.
        is_common = defaults_in(self).get("mode") not in (None, *SENSOR_MODES)
        stages = {name: value for name, value in self.stage_kwargs.items() if name != "mode" or is_common}
        self.default_args = {**self._common_args, **own, **stages}
        return self

    def __exit__(self, exc_type: Any, exc: Any, traceback: Any) -> None:
        self.default_args = self._common_args
        try:
            if exc_type is None:
                self._close()
        finally:
            super().__exit__(exc_type, exc, traceback)  # type: ignore[no-untyped-call]

    def _close(self) -> None:
        stages = self.stages = [task for task in self.iter_tasks() if self._takes_part(task, "stage")]
        jobs = [task for task in self.iter_tasks() if self._takes_part(task, "job")]
        groups = self.get_task_group_dict().values()
        inner = [group for group in groups if isinstance(group, DeltaTransactionGroup) and group is not self]
        if not stages and inner:
            raise DeltaIllegalArgumentException(
                f"The transaction {self.group_id!r} has no stages of its own: those inside belong to {inner[0].group_id!r}. "
                "Transactions do not nest: each delta_transaction commits its own stages, as one version of one table. Put the "
                "stages into one block, or write the blocks side by side."
            )
        if not stages:
            raise DeltaIllegalArgumentException(
                f"The transaction {self.group_id!r} has no stages. Inside the with block, define and call a @task.delta_stage "
                "function, or create a task that stages, such as DeltaMergeOperator or DeltaStageSparkSubmitOperator."
            )
        self._check_stage_kwargs()
        if not self.commit_kwargs.get("allow_skipped"):  # otherwise, of two branches one may run
            check_dag_overwrites(stages)
        audits = self.audits = [task for task in self.iter_tasks() if self._takes_part(task, "audit")]
        for audit in (*(job for job in jobs if hasattr(job, "staged")), *audits):
            self._give_stages(audit, stages)
        roots = [task for task in self.get_roots() if task is not self.start]
        leaves = [task for task in self.get_leaves() if task is not self.start]
        for root in roots:
            root.set_upstream(self.start)
        if self.publication is not None:
            return
        self.commit = DeltaCommitOperator(
            task_id="commit",
            transaction=self.transaction,
            staged=[XComArg(stage) for stage in stages],
            **{**_AS_START, **self.commit_kwargs},
        )
        for leaf in leaves:
            leaf.set_downstream(self.commit)
        self.abort = DeltaAbortOperator(task_id="abort", transaction=self.transaction, **_AS_START).as_teardown()
        # Every stage, not only the commit: the commit fails with the first stage, while others may still write.
        self.abort.set_upstream([self.commit, *stages, *audits])
        watch(self.abort)

    def _check_stage_kwargs(self) -> None:
        """Refuse what no task in the block takes: a misspelt condition would leave an overwrite of everything."""
        if not self.stage_kwargs:
            return
        known = {
            name for task in self.iter_tasks() for name in parameters_of(getattr(task, "operator_class", None) or type(task))
        }
        if unknown := sorted(set(self.stage_kwargs) - known):
            close = near_words(unknown[0], sorted(known))
            raise DeltaIllegalArgumentException(
                f"The stage_kwargs of the transaction {self.group_id!r} have {', '.join(map(repr, unknown))}, which no task in "
                f"the block takes{f': is {close[0]!r} meant?' if close else '.'}"
            )

    def _takes_part(self, task: Any, role: str) -> bool:
        """Return whether a task has a role in this transaction; a task without a handle gets it."""
        if role_of(task) != role:
            return False
        given = _argument(task, "transaction")
        if given is None and not _maps_over(task, "transaction"):
            self._give(task, "transaction", self.transaction)
            withdraw_default_outlets(task)  # of a stage: the commit emits
            withdraw_defaults_outlets(task)
            if task.is_mapped:  # a decorated one has not asked its operator
                take_own_mode(task.operator_class, task.partial_kwargs, dag=task.get_dag(), task_group=task.task_group)
            return True
        return any(source is self.start for source, _ in XComArg.iter_xcom_references(given))

    def _give_stages(self, audit: Any, stages: list[Any]) -> None:
        """Give an audit without ``staged`` every stage that is not downstream of it."""
        if _argument(audit, "staged") is None and not _maps_over(audit, "staged"):
            later = audit.get_flat_relative_ids(upstream=False)
            self._give(audit, "staged", [XComArg(stage) for stage in stages if stage.task_id not in later])

    def _give(self, task: Any, name: str, value: Any) -> None:
        if not task.is_mapped:
            setattr(task, name, value)
            return
        task.partial_kwargs[name] = value
        for source, _ in XComArg.iter_xcom_references(value):
            task.set_upstream(source)


def watch(abort: Any) -> None:
    """Make the task ``watcher``, which fails the run if the abort task fails."""
    # Not the abort itself: Airflow would no longer count the commit, if what comes right after it counts.
    watcher = EmptyOperator(task_id="watcher", **WATCHER_SETTINGS).as_teardown(on_failure_fail_dagrun=True)
    watcher.trigger_rule = TriggerRule.ALL_SUCCESS
    watcher.set_upstream(abort)


def _publication_around(group: Any) -> Any:
    """Return the publication whose block a transaction is in; ``None`` if it commits by itself."""
    around = group.parent_group
    while around is not None and not getattr(around, "holds_publication", False):
        around = None if getattr(around, "holds_transaction", False) else around.parent_group
    return around


def _argument(task: Any, name: str) -> Any:
    return task.partial_kwargs.get(name) if task.is_mapped else getattr(task, name)


def _maps_over(task: Any, name: str) -> bool:
    value = getattr(getattr(task, "expand_input", None), "value", None)
    return isinstance(value, Mapping) and name in value


def delta_transaction(
    group_id: str,
    *,
    table: Any,
    delta_conn_id: str | None = None,
    partition_by: str | Sequence[str] = (),
    transaction_key: str | None = None,
    app_id: str | None = None,
    txn_version: int | str | None = None,
    rerun_policy: str | None = None,
    key_check: str | None = None,
    schema: str | Mapping[str, Any] | None = None,
    properties: Mapping[str, str] | None = None,
    description: str | None = None,
    isolation_level: str | None = None,
    create: bool = True,
    on_conflict: str | None = None,
    on_clear: str | None = None,
    on_outdated: str | None = None,
    max_restarts: int | str | None = None,
    restart_conn_id: str | None = None,
    conflict_detection: str | None = None,
    outlets: Sequence[Any] | Any | None = None,
    partition_events: Any = None,
    preview: bool | str = False,
    keep_preview: timedelta | float | None = None,
    stage_kwargs: Mapping[str, Any] | None = None,
    commit_kwargs: Mapping[str, Any] | None = None,
    default_args: Mapping[str, Any] | None = None,
    **group_kwargs: Any,
) -> DeltaTransactionGroup:
    """Open a task group that is one Delta transaction: one version of the table, or nothing.

    Everything inside runs between start and commit: stages, checks, approvals, sensors. All of it must succeed before anything
    becomes visible. A first Dag needs ``table``, and for a new table perhaps ``partition_by``.

    :param group_id: id of the group, prefix of its task ids and part of the default transaction key.
    :param table: URI, absolute path, or name below the connection's base path. (templated)
    :param on_conflict: ``fail`` (default), or ``restart``: after a conflict with another commit, run everything from the start
        task on again. (templated)
    :param on_clear: if a task of the transaction is cleared without the start task after an abort: ``fail`` at once (default), or
        ``restart``: run everything from the start task on again. (templated)
    :param on_outdated: if checks have not seen what would be published, or what they say of the table may not hold there:
        ``fail``, or ``check_again``: run them again, and everything after them. Default: ``check_again`` with
        ``on_conflict="restart"`` and ``restart_conn_id``. (templated)
    :param max_restarts: maximum number of restarts by one task without success in between. (templated)
    :param restart_conn_id: connection to Airflow's REST API, needed for ``check_again``, and for ``restart`` if the Dag has
        tasks that are not downstream of the start task. (templated)
    :param conflict_detection: how closely the commit checks concurrent commits since the version that was read: ``delta``,
        ``statistics`` or ``rows`` (default), as in :class:`~airflow_delta.tasks.commit.commit_part.CommitParameters`. (templated)
    :param outlets: one or several assets that the commit emits; default: the table's own, unless its name, or the connection of a
        relative name, is templated.
    :param partition_events: emit an event with a partition key for each partition whose rows the commit has changed, besides the
        event of the table: ``True``, a column, a template, a function, or
        :class:`~airflow_delta.contract.partition_events.PartitionEvents`, as in
        :class:`~airflow_delta.tasks.commit.commit_part.CommitParameters`.
    :param preview: ``True``, or ``"changes"``: a task ``preview`` after the stages writes what they have staged as a Delta table,
        whole or the changed rows alone (:class:`~airflow_delta.operators.preview.DeltaPreviewOperator`). Its output is
        ``txn.preview``; tasks that use it run between it and the commit.
    :param keep_preview: how long a preview stays after the commit: a ``timedelta``, or a number of days. Default: it is deleted.
    :param stage_kwargs: default arguments for the tasks in the block, such as ``{"mode": "overwrite", "spark_conn_id":
        "cluster"}``; not for start, commit and abort.
    :param commit_kwargs: parameters of :class:`~airflow_delta.operators.transaction.DeltaCommitOperator`, such as
        ``{"retries": 3, "max_commit_attempts": 20}``.
    :param default_args: defaults for every task inside, and for ``delta_conn_id``, the policies and the options of the commit
        above; what decides about publication (``trigger_rule`` and ``do_xcom_push`` of start, stages, commit and abort) is not
        left to them, nor to those of the Dag.
    :param group_kwargs: parameters of Airflow's ``TaskGroup``.

    The other parameters are those of :class:`~airflow_delta.operators.transaction.DeltaStartTransactionOperator`.

    :raises DeltaIllegalArgumentException: at the end of the block, if no task inside is a stage; at its start, inside a mapped
        group, if all instances would have the same key, or none can be made from the mapped values.
    """
    table = table_text(table)
    group = DeltaTransactionGroup(
        group_id=group_id,
        stage_kwargs=dict(stage_kwargs or {}),
        preview_kwargs={"only": preview if isinstance(preview, str) else "table"} if preview else None,
        default_args=dict(default_args or {}),  # type: ignore[arg-type]
        **group_kwargs,
    )
    conn_id = delta_conn_id if delta_conn_id is not None else defaults_in(group).get("delta_conn_id", DeltaHook.default_conn_name)
    group.start_kwargs = {
        "table": table,
        "delta_conn_id": conn_id,
        "partition_by": partition_by,
        "transaction_key": transaction_key,
        "app_id": app_id,
        "txn_version": txn_version,
        "schema": schema,
        "properties": properties,
        "description": description,
        "create": create,
        **given(rerun_policy=rerun_policy, key_check=key_check, isolation_level=isolation_level),
    }
    group.commit_kwargs = {
        "outlets": table_outlets(table, conn_id) if outlets is None else listed(outlets),
        **given(
            on_conflict=on_conflict,
            on_clear=on_clear,
            on_outdated=on_outdated,
            max_restarts=max_restarts,
            restart_conn_id=restart_conn_id,
            keep_preview=keep_preview,
            partition_events=partition_events,
            conflict_detection=conflict_detection,
        ),
        **(commit_kwargs or {}),
    }
    check_outlets(group.commit_kwargs.get("partition_events"), group.commit_kwargs["outlets"], f"The transaction {group_id!r}")
    return group


def parameters_of(operator_class: type[Any]) -> set[str]:
    """Return the names of the parameters of an operator, those of its bases too."""
    makers = [vars(base)["__init__"] for base in operator_class.__mro__ if "__init__" in vars(base) and base is not object]
    return {name for maker in makers for name in inspect.signature(maker).parameters}


def given(**options: Any) -> dict[str, Any]:
    """Return the options that have a value; ``default_args`` decide about the others."""
    return {name: value for name, value in options.items() if value is not None}


def defaults_in(group: Any) -> dict[str, Any]:
    """Return the ``default_args`` of a group, of those around it and of its Dag."""
    return {**getattr(group.dag, "default_args", {}), **group.default_args}
