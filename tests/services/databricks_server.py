"""Databricks' jobs API, as far as ``DatabricksSubmitRunOperator`` uses it.

What is submitted is checked against the classes that Databricks generates from its OpenAPI specification: no unknown field, and
each value of its type.
"""

from __future__ import annotations

import enum
import inspect
import itertools
import types
import typing
from dataclasses import is_dataclass
from typing import Any, ClassVar

from databricks.sdk.service import jobs

from services.drivers import Driver, ServiceSpark
from services.loopback import Drivers, JsonService, Refused

TOKEN = "token-of-the-worker"
_SUBMIT = {name: hint for name, hint in typing.get_type_hints(jobs.JobsAPI.submit).items() if name != "return"}
assert set(_SUBMIT) == set(inspect.signature(jobs.JobsAPI.submit).parameters) - {"self"}
_CODES = {400: "INVALID_PARAMETER_VALUE", 401: "UNAUTHENTICATED", 404: "RESOURCE_DOES_NOT_EXIST"}
_FILES = ("/", "dbfs:/", "s3:/", "gs:/", "abfss:/", "file:/")
_STATES = {"running": ("RUNNING", None), "succeeded": ("TERMINATED", "SUCCESS"), "failed": ("TERMINATED", "FAILED")}


def check(value: Any, hint: Any, at: str) -> None:
    """Refuse a value that is not of a type.

    :param at: where it stands, for the error.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is not None:
            check(value, next(argument for argument in arguments if argument is not type(None)), at)
    elif is_dataclass(hint) or isinstance(hint, dict):
        if not isinstance(value, dict):
            raise Refused(400, f"{at} must be an object")
        hints = hint if isinstance(hint, dict) else typing.get_type_hints(hint)
        for name, found in value.items():
            if name not in hints:
                raise Refused(400, f"{at} has no field {name}")
            check(found, hints[name], f"{at}.{name}")
    elif origin is list:
        if not isinstance(value, list):
            raise Refused(400, f"{at} must be an array")
        for number, found in enumerate(value):
            check(found, arguments[0], f"{at}[{number}]")
    elif origin is dict:
        if not isinstance(value, dict):
            raise Refused(400, f"{at} must be a map")
        for name, found in value.items():
            check(found, arguments[1], f"{at}.{name}")
    elif isinstance(hint, type) and issubclass(hint, enum.Enum):
        if value not in [member.value for member in hint]:
            raise Refused(400, f"{at} is {value!r}, not a {hint.__name__}")
    elif not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise Refused(400, f"{at} must be of type {hint.__name__}")


class Databricks(JsonService):
    """A workspace.

    :param spark: of its clusters.
    """

    routes: ClassVar[dict[str, str]] = {
        "POST /api/2\\.[12]/jobs/runs/submit": "submit",
        "GET /api/2\\.[12]/jobs/runs/get": "get",
        "GET /api/2\\.[12]/jobs/runs/get-output": "output",
    }

    def __init__(self, spark: ServiceSpark) -> None:
        super().__init__()
        self.drivers = Drivers(spark)
        self._ids = itertools.count(1001)
        self._tasks: dict[int, dict[str, Any]] = {}
        self._tokens: dict[str, int] = {}

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self.drivers.__exit__()

    @property
    def connection(self) -> dict[str, Any]:
        """A connection of Airflow to the workspace."""
        return {"conn_type": "databricks", "host": self.url, "schema": "http", "port": self.port, "password": TOKEN}

    def refusal(self, refused: Refused) -> Any:
        """Return an error as the API tells it."""
        return {"error_code": _CODES[refused.status], "message": str(refused)}

    def submit(self, *, body: Any, headers: dict[str, str]) -> Any:
        """Submit a one-time run."""
        self._check_token(headers)
        check(body, _SUBMIT, "request")
        tasks = body.get("tasks") or []
        if len(tasks) != 1:
            raise Refused(400, "One task is all that is run here")
        [task] = tasks
        if "task_key" not in task:
            raise Refused(400, "tasks[0] has no task_key")
        clusters = [name for name in ("new_cluster", "existing_cluster_id") if name in task]
        if len(clusters) != 1:
            raise Refused(400, f"Task {task['task_key']} must have either new_cluster or existing_cluster_id")
        program = task.get("spark_python_task", {})
        if not str(program.get("python_file", "")).startswith(_FILES):
            raise Refused(400, f"Not a Python file: {program}")
        token = body.get("idempotency_token")
        if token in self._tokens:
            return {"run_id": self._tokens[token]}
        run = next(self._ids)
        if token is not None:
            if len(token) > 64:
                raise Refused(400, "idempotency_token has more than 64 characters")
            self._tokens[token] = run
        self._tasks[run] = task
        driver = Driver(program["python_file"], program.get("parameters", []))
        self.drivers.start(run, driver, retries=task.get("max_retries", 0))
        return {"run_id": run}

    def get(self, *, body: Any, headers: dict[str, str]) -> Any:
        """Tell about a run."""
        self._check_token(headers)
        run = int(body["run_id"])
        if run not in self._tasks:
            raise Refused(404, f"Run {run} does not exist")
        state, _ = self.drivers.state(run)
        life_cycle, result = _STATES[state]
        told = {"life_cycle_state": life_cycle, "state_message": ""} | ({"result_state": result} if result else {})
        task = {"run_id": run + 100000, "task_key": self._tasks[run]["task_key"], "state": told}
        return {
            "job_id": run + 200000,
            "run_id": run,
            "state": told,
            "run_page_url": f"{self.url}/#job/runs/{run}",
            "tasks": [task],
        }

    def output(self, *, body: Any, headers: dict[str, str]) -> Any:
        """Return the output of a task's run."""
        self._check_token(headers)
        state, output = self.drivers.state(int(body["run_id"]) - 100000)
        return {"error": output} if state == "failed" else {"logs": output}

    def _check_token(self, headers: dict[str, str]) -> None:
        if headers.get("Authorization") != f"Bearer {TOKEN}":
            raise Refused(401, "No token of this workspace")
