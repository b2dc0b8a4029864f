"""What Airflow's ``SparkSubmitHook`` leaves to its caller: to wait for the driver, to close its pipe, to say why it failed."""

from __future__ import annotations

import logging
import os
import re
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowException

from airflow_delta import engine
from airflow_delta.exceptions import DeltaError, StageFailedException
from airflow_delta.lazy_patterns import lazy_pattern
from airflow_delta.spark.errors import memory_advice, spaced, typed_error
from airflow_delta.tasks.spark.application_output import ApplicationOutput, application_error, ended_by
from airflow_delta.tasks.spark.installed import java_error
from airflow_delta.tasks.spark.properties import submit_error

if TYPE_CHECKING:
    from airflow_delta.contract.request import StageRequest
    from airflow_delta.log.delta_log import DeltaLog


logger = logging.getLogger(__name__)

_FIRST = 5
"""Lines in which ``spark-submit`` says that it does not start."""

_COMMAND = lazy_pattern(r"Cannot execute: .*?Error code is: -?\d+\.?\s*", re.DOTALL)


def follow_driver(hook: Any) -> None:
    """Wait for the driver where ``spark-submit`` does not: ``yarn_track_via_rm_api``, ``track_driver_via_k8s_api``."""
    if hook._should_track_yarn_application_via_rm_api():
        hook._start_yarn_application_status_tracking(hook._yarn_application_id)
    elif hook._should_track_driver_via_k8s_api():
        hook._poll_k8s_driver_via_api()


def close_pipe(hook: Any) -> None:
    """Close the output of an ended ``spark-submit``, rather than whenever it is collected as garbage."""
    process = getattr(hook, "_submit_sp", None)
    if process is not None and process.poll() is not None and process.stdout is not None:
        process.stdout.close()


def cause_of(
    failure: Exception,
    log: DeltaLog,
    request: StageRequest,
    *,
    hook: Any,
    output: ApplicationOutput,
    application: str,
    uri: str,
    spark_conn_id: str,
    stopped: bool,
) -> DeltaError | None:
    """Return the error that says why a submitted application failed; ``None`` if the failure is not the application's.

    In this order: what the stage reported, what Spark says of its set-up, and the error that the application printed.

    :param failure: what Airflow's hook raised: the command, and the last lines of any output.
    :param uri: the table's location for Spark.
    :param stopped: whether the task was told to stop, which ends its application.
    """
    reported = engine.reported_error(log, request)
    if reported is not None and not isinstance(reported, StageFailedException):
        return reported
    found = application_error(output.lines)
    if (missing := java_error("\n".join(list(output.lines)[:_FIRST]))) is not None:
        return missing
    known = submit_error(failure, uri, spark_conn_id) or (typed_error(found.text, uri) if found is not None else None)
    if known is not None or stopped or not _is_of_application(failure, hook):
        return known
    logger.debug("The submission failed", exc_info=failure)
    if reported is not None:
        text = f"{reported.message.rstrip('.')}. {_where_the_log_is(hook)}"
        return StageFailedException(text, table=reported.table, version=reported.version)
    return _application_failed(failure, request, hook, output, application)


def _is_of_application(failure: Exception, hook: Any) -> bool:
    """Return whether an application was submitted and failed: the hook raises the same errors for arguments that it refuses."""
    if type(failure) is AirflowException:
        return getattr(hook, "_submit_sp", None) is not None
    # Of a driver that the hook tracks, perhaps an earlier try's; one that it loses sight of may be alive.
    return type(failure) is RuntimeError and hook is not None and "iving up" not in str(failure)


def _application_failed(
    failure: Exception, request: StageRequest, hook: Any, output: ApplicationOutput, application: str
) -> StageFailedException:
    code = getattr(getattr(hook, "_submit_sp", None), "returncode", None)
    ended, found = ended_by(code), application_error(output.lines)
    if ended.startswith("killed"):  # it cannot have printed why
        said = f"the driver was {ended}"
    elif found is not None:
        said = f"{found.said.rstrip('.')}{f' ({ended})' if ended else ''}"
    elif said := _COMMAND.sub("", str(failure)).partition("Last spark-submit output:")[0].strip():
        pass  # what a cluster says of a driver
    else:
        said = f"it ended with {ended or 'an error'}, and printed none"
    advice = memory_advice(f"{said}\n{found.text if found is not None else failure}\nexit code {code}")
    return request.error(
        StageFailedException,
        f"The Spark application {os.path.basename(application)} of stage {request.stage} failed: {said.rstrip('.')}."
        f"{spaced(advice)} {_where_the_log_is(hook)}",
    )


def _where_the_log_is(hook: Any) -> str:
    """Return where an application's output is: in cluster mode, not here."""
    if found := getattr(hook, "_yarn_application_id", None):
        return f"Its log: yarn logs -applicationId {found}"
    if found := getattr(hook, "_kubernetes_driver_pod", None):
        return f"Its log: kubectl logs {found}"
    if found := getattr(hook, "_driver_id", None):
        return f"Its log is that of the driver {found}, on the master's page and on the cluster's worker."
    return "Its output is above in this log."
