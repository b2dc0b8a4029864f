"""The task before a job: it plans the stage, and puts request, program and modules where the job finds them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk.exceptions import AirflowSkipException

from airflow_delta import engine
from airflow_delta.contract.options import CONNECTION, PACKAGE_ARGUMENT, REQUEST_ARGUMENT
from airflow_delta.contract.payloads import StagedWrite
from airflow_delta.contract.spark_versions import check_request, check_version
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.tasks.base import DeltaOperator
from airflow_delta.tasks.declared import Parameters, parameter
from airflow_delta.tasks.stage.operator import StageOperator
from airflow_delta.tasks.stage.schema_drift import drift_told
from airflow_delta.tasks.stage.work import StageWork

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_delta.contract.request import StageRequest
    from airflow_delta.log.delta_log import DeltaLog

APPLICATION_NAME, PACKAGE_NAME = "application.py", "airflow_delta.zip"
"""The program and its modules, beside the request."""

PLANNED, STAGED, SKIPPED = "directory", "staged", "skipped"
"""Keys of what the task returns: the directory of the attempt; the staged write, if no job is needed; why a stage is skipped."""

UNASKED = "unasked"
"""Key of what the task returns if an audit has no query for a job."""


_HOW_TO_RUN = {
    "application",
    "spark_submit",
    "package_uri",
    "spark_conn_id",
    "spark_packages",
    "spark_credentials",
    "config_kwargs",
}
"""Parameters of operators that say where their Spark work is done."""


class JobParameters(Parameters):
    """What the task before a job has besides the parameters of the operation.

    :param stage_task_id: id of the task that collects, whose output is the staged write.
    :param spark_version: the version of the service's Spark, such as ``3.5``: what it lacks is then refused before the job
        starts. (templated)
    """

    stage_task_id: str = parameter()
    spark_version: str | None = parameter(default=None, templated=True)


class PlansJob(StageOperator, JobParameters):
    """Does all of a stage that comes before its Spark work; mixed into the operator that plans it (:func:`job_plan`)."""

    transaction_role: ClassVar[str] = "job"

    @property
    def is_own_transaction(self) -> bool:
        """Never: what a job stages is for the commit of a transaction."""
        return False

    def carry_out(self, work: StageWork, context: Context) -> Any:
        """Plan the stage, and return where its job works.

        :raises DeltaIllegalArgumentException: if the job would need the secret options of a connection.
        :raises SparkVersionException: if the table has what ``spark_version`` lacks.
        :raises AirflowSkipException: if no job is needed: the job's task is skipped, too, and the one that collects goes on.
        """
        work.stage_as(self.stage_task_id)
        staged = work.report_if_committed(self.skipped_mode)
        request: StageRequest | None = None
        if staged is None:
            if getattr(self, "secret_properties", dict)():
                raise work.handle.error(
                    DeltaIllegalArgumentException,
                    f"The source of the task {self.task_id!r} has the secret options of a connection, which no job is given. "
                    f"Leave {CONNECTION} out: the job reads it with credentials of its own.",
                )
            try:
                with drift_told(work.context, work.handle):
                    _, planned = self.make_plan(work)
            except AirflowSkipException as nothing:  # such as skip_if_none: the stage is skipped, not only its plan
                context["ti"].xcom_push(key="return_value", value={SKIPPED: str(nothing)})
                raise
            if isinstance(planned, StagedWrite):
                staged = planned.to_dict()
            else:
                request = planned.request
        if request is None:
            context["ti"].xcom_push(key="return_value", value={STAGED: staged})
            raise AirflowSkipException("Nothing is left to do for a job.")
        if self.spark_version is not None:
            check_request(self.spark_version, request)
        work.tell_plan(request)
        for key, value in put_job(work.log, request).items():
            context["ti"].xcom_push(key=key, value=value)
        return {PLANNED: request.directory}


def put_job(log: DeltaLog, request: StageRequest) -> dict[str, Any]:
    """Put what a job needs into the directory of the attempt, and return what its operator is given.

    The program is named as the worker reaches it, since services start a program by their own store's URI, and as Spark does,
    like the rest.
    """
    uri = engine.put_request(log, request)
    with open(engine.application_path(), "rb") as program:
        log.store.put(f"{request.directory}/{APPLICATION_NAME}", program.read())
    log.store.put(f"{request.directory}/{PACKAGE_NAME}", engine.package_bytes())
    package_uri = f"{request.path}/{PACKAGE_NAME}"
    return {
        "application": f"{log.uri}/{request.directory}/{APPLICATION_NAME}",
        "spark_application": f"{request.path}/{APPLICATION_NAME}",
        "package": package_uri,
        "request": uri,
        "arguments": [REQUEST_ARGUMENT, uri, PACKAGE_ARGUMENT, package_uri],
        "submit_parameters": f"--py-files {package_uri}",
    }


def check_job(operator_class: Any, given: Any, *, whose: str) -> None:
    """Refuse what no job can do, or what is not the job's.

    :param given: arguments of the operator.
    :raises DeltaIllegalArgumentException: if the operator has no Spark work that a request describes, or is given how to do it.
    :raises SparkVersionException: if the job is to run on a Spark older than 3.5.
    """
    version = given.get("spark_version")
    if isinstance(version, str) and "{" not in version:
        check_version(version)
    if not (isinstance(operator_class, type) and issubclass(operator_class, DeltaOperator)):
        raise DeltaIllegalArgumentException(f"{whose} is given {operator_class!r}, which is no operator that stages something.")
    why = operator_class.by_job
    if isinstance(why, str):
        raise DeltaIllegalArgumentException(f"{whose} is given {operator_class.__name__}, which {why}.")
    if why is None or given.get("engine") in ("arrow", "auto"):
        raise DeltaIllegalArgumentException(
            f"{whose} is given {operator_class.__name__}, whose work is not done by an application. Use it without delta_job."
        )
    if own := sorted(_HOW_TO_RUN & set(given)):
        raise DeltaIllegalArgumentException(
            f"{whose} is given {own[0]}, but the Spark work is that of the operator in its block: say there how to run it."
        )
    if callable(given.get("source")):
        raise DeltaIllegalArgumentException(
            f"{whose} has a function as source, which needs a session of the worker. Give it as SQL or as a path."
        )
