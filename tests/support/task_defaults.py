"""What ``default_args`` of a Dag may hold, by the name of the test Dag that has it."""

from __future__ import annotations

import getpass
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import Asset

from airflow_delta.retry_policies import DeltaRetryPolicy

DEFAULTS: dict[str, dict[str, Any]] = {
    **{
        f"trigger_rule_{rule}": {"trigger_rule": rule}
        for rule in ("all_done", "all_done_min_one_success", "one_success", "one_done", "none_failed", "always")
    },
    "retries": {"retries": 0},
    "no_retry_policy": {"retry_policy": None},
    "other_retry_policy": {"retry_policy": DeltaRetryPolicy(on_conflict="retry"), "retries": 0},
    "no_xcom": {"do_xcom_push": False},
    "multiple_outputs": {"multiple_outputs": True},
    "execution_timeout": {"execution_timeout": timedelta(minutes=9)},
    "depends_on_past": {"depends_on_past": True, "ignore_first_depends_on_past": True},
    "wait_for_downstream": {"wait_for_downstream": True, "wait_for_past_depends_before_skipping": True},
    "weight": {"weight_rule": "absolute", "priority_weight": 7},
    "pool": {"pool": "default_pool", "pool_slots": 2, "queue": "elsewhere"},
    "executor": {"executor": "LocalExecutor", "executor_config": {"key": "value"}, "run_as_user": getpass.getuser()},
    "email": {"email": "me@example.com", "email_on_failure": False, "email_on_retry": False},
    "on_failure_fail_dagrun": {"on_failure_fail_dagrun": True},
    "outlets": {"outlets": [Asset("from-defaults")]},
    "inlets": {"inlets": [Asset("read-by-all")]},
    "map_index_template": {"map_index_template": "{{ task.task_id }}"},
    "max_active": {"max_active_tis_per_dag": 1, "max_active_tis_per_dagrun": 1},
    "native": {"render_template_as_native_obj": True},
    "end_date": {"start_date": datetime(2025, 1, 1, tzinfo=UTC), "end_date": datetime(2027, 1, 1, tzinfo=UTC)},
}
