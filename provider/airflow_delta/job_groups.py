"""``delta_job``: the Spark work of a stage, on any service that runs a Python file with arguments."""

from __future__ import annotations

import sys
from typing import Any, ClassVar

import attrs
from airflow.sdk import TaskGroup, TriggerRule, XComArg

from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.tasks.job.plan import JobParameters, check_job
from airflow_delta.tasks.job.tasks import audits, job_collect, job_plan
from airflow_delta.tasks.settings import transaction_groups
from airflow_delta.tasks.stage.application import ApplicationStage


@attrs.define(kw_only=True, repr=False)
class DeltaJobGroup(TaskGroup):
    """Task group of one stage whose Spark work is a job of the author's choice; made by :func:`delta_job`.

    ``plan`` runs before the tasks in the block, ``collect`` after them. The properties are values for their templated fields.
    """

    holds_job: ClassVar[bool] = True

    operator_class: Any = attrs.field(default=None)
    operator_kwargs: dict[str, Any] = attrs.field(factory=dict)
    plan: Any = attrs.field(default=None, init=False)
    collect: Any = attrs.field(default=None, init=False)

    @property
    def application(self) -> XComArg:
        """The URI of the program to run, as the worker reaches it (``s3://``, ``abfs://``, ``gs://``)."""
        return XComArg(self.plan, key="application")

    @property
    def spark_application(self) -> XComArg:
        """The URI of the same program as Spark reaches it (``s3a://``, ``abfss://``): for ``spark-submit``."""
        return XComArg(self.plan, key="spark_application")

    @property
    def arguments(self) -> XComArg:
        """The arguments of the program, a list: ``--delta-request URI --delta-package URI``."""
        return XComArg(self.plan, key="arguments")

    @property
    def request(self) -> XComArg:
        """The URI of the request alone, for services that take arguments by name."""
        return XComArg(self.plan, key="request")

    @property
    def package(self) -> XComArg:
        """The URI of the zip with the modules that a program needs, as Spark reaches it."""
        return XComArg(self.plan, key="package")

    @property
    def submit_parameters(self) -> XComArg:
        """Options of ``spark-submit`` for a program of the author's: ``--py-files URI``."""
        return XComArg(self.plan, key="submit_parameters")

    @property
    def staged(self) -> XComArg:
        """The staged write, for ``after`` of later stages; of an audit, its report. Only after the ``with`` block."""
        return XComArg(self.collect)

    def __enter__(self) -> DeltaJobGroup:
        super().__enter__()
        stage = self.child_id("collect")  # type: ignore[no-untyped-call]
        try:
            self.plan = job_plan(self.operator_class)(task_id="plan", stage_task_id=stage, **self.operator_kwargs)
        except BaseException:  # no __exit__ follows, and other Dags of this process would be inside of this group
            super().__exit__(*sys.exc_info())  # type: ignore[no-untyped-call]
            raise
        return self

    def __exit__(self, exc_type: Any, exc: Any, traceback: Any) -> None:
        try:
            if exc_type is None:
                self._close()
        finally:
            super().__exit__(exc_type, exc, traceback)  # type: ignore[no-untyped-call]

    def _close(self) -> None:
        roots = [task for task in self.get_roots() if task is not self.plan]
        leaves = [task for task in self.get_leaves() if task is not self.plan]
        if not any(task is not self.plan for task in self.iter_tasks()):
            raise DeltaIllegalArgumentException(
                f"The job {self.group_id!r} has no task that runs it. Inside the with block, create an operator that runs a "
                "Python file, such as EmrServerlessStartJobOperator or SparkSubmitOperator, with job.application and "
                "job.arguments."
            )
        for root in roots:
            root.set_upstream(self.plan)
        of_both = {name: value for name, value in self.operator_kwargs.items() if name not in JobParameters.declared}
        self.collect = job_collect(self.operator_class)(
            task_id="collect",
            trigger_rule=TriggerRule.NONE_FAILED,  # if there is nothing to do, the job's task is skipped
            planned=self.plan.output,
            **({"planned_by": self.plan.task_id} if audits(self.operator_class) else {}),
            **of_both,
        )
        for leaf in leaves:
            leaf.set_downstream(self.collect)


def delta_job(group_id: str, operator_class: Any = None, **kwargs: Any) -> DeltaJobGroup:
    """Open a task group around the operator that runs the Spark work of one stage, inside a ``delta_transaction``.

    ::

        with delta_transaction("load", table="s3://lake/orders"):
            with delta_job("merge", DeltaMergeOperator, condition="target.id = source.id", source=...) as job:
                EmrServerlessStartJobOperator(
                    task_id="run",
                    job_driver={"sparkSubmit": {"entryPoint": job.application, "entryPointArguments": job.arguments}},
                    ...,
                )

    A task before the block plans the stage and puts request and program below the table's staging directory; a task after it
    reads the report, checks the files and returns the staged write. The service may run the job twice, or again: one run counts.

    :param group_id: id of the group, prefix of its task ids.
    :param operator_class: the operator whose Spark work it is (``DeltaDeleteOperator``, ``DeltaUpdateOperator``,
        ``DeltaMergeOperator``, ``DeltaScd2MergeOperator``, ``DeltaStageSqlOperator``, ``DeltaCopyIntoOperator``,
        ``DeltaOptimizeOperator``, ``DeltaReorgOperator``, ``DeltaAlterTableOperator``, ``DeltaAuditOperator``);
        default: a program of the author's writes rows by ``delta_stage(spark).write(df)``.
    :param kwargs: parameters of that operator, without those that say where Spark runs; by default those of
        :class:`~airflow_delta.tasks.stage.application.ApplicationStage`. ``spark_table_uri`` is the table's URI as the
        service reaches it, such as ``s3://`` on EMR. ``spark_version`` is that of the service, such as ``3.5``: what it
        lacks is then refused by the task that plans.
    :raises DeltaIllegalArgumentException: if the operator has no work for a job, or there is no transaction around; at the end of
        the block, if no task is in it.
    """
    kind = ApplicationStage if operator_class is None else operator_class
    check_job(kind, kwargs, whose=f"The job {group_id!r}")
    group = DeltaJobGroup(group_id=group_id, operator_class=kind, operator_kwargs=kwargs)
    if "transaction" not in kwargs and next(transaction_groups(group), None) is None:
        raise DeltaIllegalArgumentException(
            f"The job {group_id!r} is in no transaction: put it into the block of a delta_transaction, or pass transaction=."
        )
    return group
