"""``delta_publication``: one publication around the transactions of several tables, all or none of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import attrs
from airflow.sdk import TaskGroup, XComArg

from airflow_delta.assets.delta import delta_asset_uri
from airflow_delta.contract.choices import RERUN_POLICIES, choice_problem, is_literal
from airflow_delta.dag_rules.wiring import role_of
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.operators.publication import DeltaAbortPublicationOperator, DeltaCommitPublicationOperator
from airflow_delta.task_groups import DeltaTransactionGroup, defaults_in, given, watch
from airflow_delta.tasks.outlets import listed
from airflow_delta.tasks.publication import MAX_TABLES

_ALONE = {
    "DeltaCloneOperator": "CLONE replaces a table with another one",
    "DeltaComputeStatisticsOperator": "it commits to its table by itself",
    "DeltaConvertOperator": "CONVERT makes a table of files that lie where they are",
    "DeltaCopyIntoOperator": "the files that it loads count as loaded, also if the publication is taken back",
    "DeltaDropFeatureOperator": "a feature is dropped in commits of its own",
    "DeltaEnableRowTrackingOperator": "row tracking is switched on in commits of its own",
    "DeltaMaintenanceBase": "it commits to its table by itself",
    "DeltaMaintenanceOperator": "maintenance commits to its table by itself, and deletes files",
    "DeltaRemoveColumnMappingOperator": "it rewrites all files in a commit of its own",
    "DeltaReorgOperator": "REORG rewrites files for good, and what it purges cannot be taken back",
    "DeltaRestoreOperator": "RESTORE replaces the whole table, in a commit too large to be checked with others",
    "DeltaStreamOperator": "a stream commits each batch by itself",
    "DeltaVacuumOperator": "VACUUM deletes files, which nothing takes back",
}
"""Operators that a publication does not take, by the name of their class, and why."""

_OF_THE_PUBLICATION = {
    "on_conflict": "fail",
    "on_clear": "fail",
    "on_outdated": None,
    "max_restarts": 3,
    "restart_conn_id": None,
    "conflict_detection": None,
}
"""Parameters of ``delta_transaction`` that are the publication's around it, and what they say that changes nothing."""


@attrs.define(kw_only=True, repr=False)
class DeltaPublicationGroup(TaskGroup):
    """Task group of one publication; made by :func:`delta_publication`.

    The ``delta_transaction`` groups inside have a ``start`` and stages; ``commit`` publishes the stages of all of them, ``abort``
    is the teardown, and ``watcher`` fails the run if ``abort`` fails.
    """

    holds_publication: ClassVar[bool] = True

    rerun_policy: str = "skip"
    anchor: str | None = None
    commit_kwargs: dict[str, Any] = attrs.field(factory=dict)
    outlets: list[Any] | None = None
    transactions: list[DeltaTransactionGroup] = attrs.field(factory=list, init=False)
    commit: Any = attrs.field(default=None, init=False)
    abort: Any = attrs.field(default=None, init=False)

    @property
    def result(self) -> XComArg:
        """The outcome of the publication, with the result of each table; only after the ``with`` block."""
        return XComArg(self.commit)

    def __enter__(self) -> DeltaPublicationGroup:
        around: Any = self.parent_group
        while around is not None:
            if getattr(around, "holds_publication", False) or getattr(around, "holds_transaction", False):
                raise DeltaIllegalArgumentException(
                    f"The publication {self.group_id!r} is inside {around.group_id!r}. Publications do not nest: put the "
                    "transactions of all tables into one block, or write the blocks side by side."
                )
            around = around.parent_group
        super().__enter__()
        return self

    def __exit__(self, exc_type: Any, exc: Any, traceback: Any) -> None:
        try:
            if exc_type is None:
                self._close()
        finally:
            super().__exit__(exc_type, exc, traceback)  # type: ignore[no-untyped-call]

    def admit(self, group: DeltaTransactionGroup) -> None:
        """Take a transaction into the publication, before its start task is made.

        :raises DeltaIllegalArgumentException: if it cannot be part of one.
        """
        around = {mapped.group_id for mapped in self.iter_mapped_task_groups()}
        for mapped in group.iter_mapped_task_groups():
            if mapped.group_id not in around:
                raise DeltaIllegalArgumentException(
                    f"The transaction {group.group_id!r} is in the mapped group {mapped.group_id!r}, inside the publication "
                    f"{self.group_id!r}. How many tables a publication has, and which, is fixed in the Dag file: each of them is "
                    "in the plan that every later attempt, clear and cleanup follows, and a list that is made in the run may "
                    "change with a clear. Make the groups in a loop over a list of the Dag file, or map a group around the "
                    "whole publication."
                )
        for name, default in _OF_THE_PUBLICATION.items():
            if group.commit_kwargs.get(name, default) != default:
                raise _not_its_own(group, self, name)
        if more := sorted(set(group.commit_kwargs) - set(_OF_THE_PUBLICATION) - {"outlets"}):
            raise _not_its_own(group, self, f"commit_kwargs ({', '.join(more)})")
        if group.start_kwargs.get("rerun_policy", "skip") not in ("skip", self.rerun_policy):
            raise DeltaIllegalArgumentException(
                f"The transaction {group.group_id!r} has rerun_policy={group.start_kwargs['rerun_policy']!r}, the publication "
                f"{self.group_id!r} {self.rerun_policy!r}. All its tables share one: they are published together, or not at all."
            )
        if group.start_kwargs.get("app_id") is not None or group.start_kwargs.get("txn_version") is not None:
            raise DeltaIllegalArgumentException(
                f"The transaction {group.group_id!r} has app_id and txn_version. What a publication takes back must be told "
                "apart from what was never there, which a version of the author's does not allow: pass transaction_key= instead."
            )
        group.start_kwargs["rerun_policy"] = self.rerun_policy
        table = _table_key(group)
        for other in self.transactions:
            if table is not None and _table_key(other) == table:
                raise DeltaIllegalArgumentException(
                    f"The transactions {other.group_id!r} and {group.group_id!r} are on the same table "
                    f"{group.start_kwargs['table']!r}. In a publication, each table has one transaction: put the stages of both "
                    "into one block."
                )
        self.transactions.append(group)
        if len(self.transactions) > MAX_TABLES:
            raise DeltaIllegalArgumentException(
                f"The publication {self.group_id!r} has more than {MAX_TABLES} tables. Each is put one after the other, and for "
                "that long readers of single tables see some before others. Publish fewer together."
            )

    def _close(self) -> None:
        if not self.transactions:
            raise DeltaIllegalArgumentException(
                f"The publication {self.group_id!r} has no transactions. Inside the with block, open a delta_transaction for "
                "each table, with its stages."
            )
        self._check_tasks()
        starts = [group.start for group in self.transactions]
        start_ids = {start.task_id for start in starts}
        handles = [group.transaction for group in self.transactions]
        staged = [[XComArg(stage) for stage in group.stages] for group in self.transactions]
        audits = [task for task in self.iter_tasks() if role_of(task) == "audit_publication"]
        for audit in audits:
            self._give(audit, handles)
        roots = [task for task in self.get_roots() if task.task_id not in start_ids]
        for root in roots:
            if not start_ids & set(root.get_flat_relative_ids(upstream=False)):
                root.set_upstream(starts)
        leaves = list(self.get_leaves())
        self.commit = DeltaCommitPublicationOperator(
            task_id="commit",
            transactions=handles,
            staged=staged,
            anchor=self._anchor_index(),
            outlets=self._table_outlets(),
            **self.commit_kwargs,
        )
        for leaf in leaves:
            leaf.set_downstream(self.commit)
        stages = [stage for group in self.transactions for stage in group.stages]
        checks = [audit for group in self.transactions for audit in group.audits]
        self.abort = DeltaAbortPublicationOperator(task_id="abort", transactions=handles).as_teardown()
        # Every stage, not only the commit: the commit fails with the first stage, while others may still write.
        self.abort.set_upstream([self.commit, *stages, *checks, *audits])
        watch(self.abort)

    def _check_tasks(self) -> None:
        """Refuse tasks that change a table, but not with the publication."""
        for task in self.iter_tasks():
            cls = getattr(task, "operator_class", None) or type(task)
            why = next((_ALONE[base.__name__] for base in cls.__mro__ if base.__name__ in _ALONE), None)
            if why is None and getattr(cls, "emits_table", False) and _argument(task, "transaction") is None:
                why = "it has no transaction, so it commits to its table by itself"
            if why is not None:
                raise DeltaIllegalArgumentException(
                    f"The task {task.task_id!r} cannot be part of the publication {self.group_id!r}: {why}, so readers would see "
                    "it whatever becomes of the other tables. Put it before or after the block."
                )
            if role_of(task) == "stage" and _argument(task, "transaction") is None:
                raise DeltaIllegalArgumentException(
                    f"The task {task.task_id!r} stages rows in the publication {self.group_id!r}, but outside of its "
                    "transactions: nothing says for which table. Move it into the block of a delta_transaction."
                )
            if role_of(task) == "audit" and _argument(task, "transaction") is None:
                raise DeltaIllegalArgumentException(
                    f"The audit {task.task_id!r} is about one table, but belongs to none of the transactions of the publication "
                    f"{self.group_id!r}. Move it into one, or use DeltaAuditPublicationOperator for checks over all tables."
                )

    def _give(self, audit: Any, handles: Sequence[XComArg]) -> None:
        """Give an audit over all tables their handles, and the stages that do not come after it."""
        if audit.is_mapped:
            raise DeltaIllegalArgumentException(
                f"The audit {audit.task_id!r} of the publication {self.group_id!r} is mapped. Give one audit several checks, or "
                "make several in a loop."
            )
        later = audit.get_flat_relative_ids(upstream=False)
        audit.transactions = list(handles)
        audit.staged = [[XComArg(stage) for stage in group.stages if stage.task_id not in later] for group in self.transactions]
        audit.names = [str(group.label) for group in self.transactions]

    def _anchor_index(self) -> int | None:
        if self.anchor is None:
            return None
        for index, group in enumerate(self.transactions):
            if self.anchor in (group.label, group.group_id):
                return index
        known = ", ".join(repr(group.label) for group in self.transactions)
        raise DeltaIllegalArgumentException(
            f"anchor of the publication {self.group_id!r} must be the id of one of its transactions ({known}), got "
            f"{self.anchor!r}."
        )

    def _table_outlets(self) -> list[Any]:
        if self.outlets is not None:
            return self.outlets
        return [outlet for group in self.transactions for outlet in group.commit_kwargs.get("outlets", ())]


def _not_its_own(group: Any, publication: Any, name: str) -> DeltaIllegalArgumentException:
    return DeltaIllegalArgumentException(
        f"The transaction {group.group_id!r} has {name}, but it has no commit of its own. Pass it to the publication "
        f"{publication.group_id!r}, which commits all its tables."
    )


def _table_key(group: Any) -> str | None:
    """Return a text that is the same for transactions on the same table; ``None`` if only a run knows it."""
    table, conn_id = group.start_kwargs["table"], group.start_kwargs["delta_conn_id"]
    return delta_asset_uri(table, conn_id) if is_literal(table) and is_literal(conn_id) and table.strip() else None


def _argument(task: Any, name: str) -> Any:
    if not task.is_mapped:
        return getattr(task, name, None)
    given = getattr(task.expand_input, "value", None)
    return task.partial_kwargs.get(name) or (given.get(name) if isinstance(given, Mapping) else given)


def delta_publication(
    group_id: str,
    *,
    rerun_policy: str | None = None,
    on_late_conflict: str | None = None,
    anchor: str | None = None,
    intents: bool | None = None,
    patience: float | None = None,
    on_conflict: str | None = None,
    on_clear: str | None = None,
    on_outdated: str | None = None,
    max_restarts: int | str | None = None,
    restart_conn_id: str | None = None,
    conflict_detection: str | None = None,
    outlets: Sequence[Any] | Any | None = None,
    commit_kwargs: Mapping[str, Any] | None = None,
    default_args: Mapping[str, Any] | None = None,
    **group_kwargs: Any,
) -> DeltaPublicationGroup:
    """Open a task group that publishes the transactions inside together: all their tables, or none.

    Open a ``delta_transaction`` for each table inside; stages, audits, approvals and sensors run before anything is visible. What
    a publication promises, and what it cannot promise about writers that do not know it: ``docs/several-tables.md``.

    :param group_id: id of the group, prefix of its task ids and part of the default transaction keys.
    :param rerun_policy: ``skip`` (default), ``replace``, ``append`` or ``fail``, for all tables.
    :param on_late_conflict: if a writer that does not know publications changes a table between the decision and that table's
        own commit, in a way that conflicts: ``undo`` (default) takes back what is published, ``keep`` leaves it.
    :param anchor: id of the transaction whose table holds the decision: the one whose stages are hardest to do again. Default:
        chosen by what the stages do.
    :param intents: announce the publication on the other tables first (default), so that writers with this provider do not come
        between.
    :param patience: seconds that a writer waits for a publication that it meets and may not settle itself; default: 60.
    :param on_conflict: ``fail`` (default), or ``restart``: after ``refused`` or ``undone``, run everything from the start tasks
        on again. (templated)
    :param on_clear: if a task inside is cleared without the start tasks after an abort: ``fail`` at once (default), or
        ``restart``. (templated)
    :param on_outdated: if checks have not seen what would be published, or what they say of the table may not hold there:
        ``fail``, or ``check_again``: run them again, and everything after them. Default: ``check_again`` with
        ``on_conflict="restart"`` and ``restart_conn_id``. (templated)
    :param max_restarts: maximum number of restarts by one task without success in between. (templated)
    :param restart_conn_id: connection to Airflow's REST API, needed for ``check_again``, and for ``restart`` if the Dag has
        tasks that are not downstream of the start tasks. (templated)
    :param conflict_detection: how closely the commit checks concurrent commits: ``delta``, ``statistics`` or ``rows`` (default).
        (templated)
    :param outlets: one or several assets that the commit emits; default: those of the tables.
    :param commit_kwargs: parameters of :class:`~airflow_delta.operators.publication.DeltaCommitPublicationOperator`.
    :param default_args: defaults for every task inside, and for the policies and options above; what decides about publication
        is not left to them.
    :param group_kwargs: parameters of Airflow's ``TaskGroup``.
    :raises DeltaIllegalArgumentException: if an option is not valid; at the end of the block, if there is no transaction inside,
        or a task that cannot be part of a publication.
    """
    options = given(
        on_late_conflict=on_late_conflict,
        intents=intents,
        patience=patience,
        on_conflict=on_conflict,
        on_clear=on_clear,
        on_outdated=on_outdated,
        max_restarts=max_restarts,
        restart_conn_id=restart_conn_id,
        conflict_detection=conflict_detection,
    )
    group = DeltaPublicationGroup(
        group_id=group_id,
        anchor=anchor,
        commit_kwargs={**options, **(commit_kwargs or {})},
        outlets=None if outlets is None else listed(outlets),
        default_args=dict(default_args or {}),  # type: ignore[arg-type]
        **group_kwargs,
    )
    group.rerun_policy = rerun_policy if rerun_policy is not None else defaults_in(group).get("rerun_policy", group.rerun_policy)
    if (problem := choice_problem("rerun_policy", group.rerun_policy, RERUN_POLICIES)) is not None:
        raise DeltaIllegalArgumentException(f"The publication {group_id!r}: {problem}")
    return group
