"""What Airflow's ``SparkSubmitHook`` leaves to its caller."""

from __future__ import annotations

from typing import Any


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
