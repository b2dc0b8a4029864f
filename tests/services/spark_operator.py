"""The Spark operator of Kubernetes on loopback: the API server's part in it, and the operator's.

A ``SparkApplication`` is checked by the schema of its own definition; unknown fields are refused, which an API server only drops.
Its driver runs as the operator would have started it, and its pod is told.
"""

from __future__ import annotations

import copy
import functools
import itertools
from datetime import UTC, datetime
from typing import Any, ClassVar

import jsonschema
import yaml

from services.drivers import Driver, ServiceSpark
from services.install import CUSTOM_RESOURCES
from services.loopback import Drivers, JsonService, Refused

NAMESPACE = "spark"
_APPLICATIONS = f"/apis/sparkoperator\\.k8s\\.io/v1beta2/namespaces/{NAMESPACE}/sparkapplications"
_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
_CONTAINER = "spark-kubernetes-driver"
_STATES = {"running": ("RUNNING", "Running"), "succeeded": ("COMPLETED", "Succeeded"), "failed": ("FAILED", "Failed")}
"""State of an application, and phase of its driver's pod."""


@functools.cache
def schema() -> dict[str, Any]:
    """Return the schema of a ``SparkApplication``, as JSON Schema."""
    definition = yaml.safe_load((CUSTOM_RESOURCES / "sparkoperator.k8s.io_sparkapplications.yaml").read_text())
    [version] = definition["spec"]["versions"]
    return _strict(version["schema"]["openAPIV3Schema"])


def _strict(given: dict[str, Any]) -> dict[str, Any]:
    """Translate what Kubernetes adds to JSON Schema, and refuse what is not in it."""
    if given.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    made = {name: value for name, value in given.items() if not name.startswith("x-kubernetes") and name != "format"}
    if "properties" in made:
        made["properties"] = {name: _strict(value) for name, value in made["properties"].items()}
        if not given.get("x-kubernetes-preserve-unknown-fields"):
            made.setdefault("additionalProperties", False)
    if isinstance(made.get("additionalProperties"), dict):
        made["additionalProperties"] = _strict(made["additionalProperties"])
    if "items" in made:
        made["items"] = _strict(made["items"])
    return made


class SparkOperator(JsonService):
    """A cluster with the operator.

    :param spark: of the image.
    """

    routes: ClassVar[dict[str, str]] = {
        f"POST {_APPLICATIONS}": "create",
        f"GET {_APPLICATIONS}/([-.\\w]+)/status": "get",
        f"DELETE {_APPLICATIONS}/([-.\\w]+)": "delete",
        f"GET {_PODS}": "pods",
        f"GET {_PODS}/([-.\\w]+)-driver": "pod",
        f"PATCH {_PODS}/([-.\\w]+)-driver": "label",
        f"GET {_PODS}/([-.\\w]+)-driver/log": "log",
        f"GET /api/v1/namespaces/{NAMESPACE}/events": "events",
    }

    post_status = 201

    def __init__(self, spark: ServiceSpark) -> None:
        super().__init__()
        self.drivers = Drivers(spark)
        self.applications: dict[str, Any] = {}
        self.deleted: dict[str, Any] = {}
        self._uids = itertools.count(1)
        self._labels: dict[str, dict[str, str]] = {}

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self.drivers.__exit__()

    @property
    def connection(self) -> dict[str, Any]:
        """A connection of Airflow to the cluster."""
        configuration = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "tests", "cluster": {"server": self.url}}],
            "users": [{"name": "worker", "user": {"token": "of-the-worker"}}],
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "worker"}}],
            "current-context": "tests",
        }
        return {"conn_type": "kubernetes", "extra": {"kube_config": configuration}}

    def refusal(self, refused: Refused) -> Any:
        """Return Kubernetes' ``Status``."""
        return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": str(refused), "code": refused.status}

    def create(self, *, body: Any, headers: dict[str, str]) -> Any:
        """Create an application, and start its driver."""
        # Airflow's operator adds these, which the definition lacks: by default, an API server drops what it does not know.
        body["spec"].pop("labels", None)
        errors = sorted(jsonschema.Draft7Validator(schema()).iter_errors(body), key=lambda error: error.json_path)
        if errors:
            raise Refused(422, "; ".join(f"{error.json_path}: {error.message}" for error in errors))
        name, spec = body["metadata"]["name"], body["spec"]
        if name in self.applications:
            raise Refused(409, f"There is a SparkApplication {name}")
        if spec["type"] != "Python" or spec.get("mode", "cluster") != "cluster":
            raise Refused(422, "Python in cluster mode is all that is run here")
        self.applications[name] = copy.deepcopy(body)
        self._labels[name] = {**spec["driver"].get("labels", {}), "spark-role": "driver"}
        files = spec.get("deps", {}).get("pyFiles", [])
        conf = [part for key, value in spec.get("sparkConf", {}).items() for part in ("--conf", f"{key}={value}")]
        parameters = [*conf, *(["--py-files", ",".join(files)] if files else [])]
        policy = spec.get("restartPolicy", {})
        retries = policy.get("onFailureRetries", 0) if policy.get("type") == "OnFailure" else 0
        self.drivers.start(name, Driver(spec["mainApplicationFile"], spec.get("arguments", []), parameters), retries=retries)
        return self.get(name, body=None, headers=headers)

    def get(self, name: str, *, body: Any, headers: dict[str, str]) -> Any:
        """Return an application with its status."""
        state, output = self._state(name)
        status = {"applicationState": {"state": _STATES[state][0], "errorMessage": output if state == "failed" else ""}}
        return {**self.applications[name], "status": status}

    def delete(self, name: str, *, body: Any, headers: dict[str, str]) -> Any:
        """Delete an application, and its pod."""
        self._state(name)
        self.deleted[name] = self.applications.pop(name)
        return {"kind": "Status", "apiVersion": "v1", "status": "Success"}

    def pods(self, *, body: Any, headers: dict[str, str]) -> Any:
        """Return the pods that have the labels asked for, and not a phase that is asked not to be."""
        asked = [part for part in body.get("labelSelector", "").split(",") if "!" not in part and "=" in part]
        wanted = {tuple(part.split("=", 1)) for part in asked}
        phases = {part.partition("!=")[2] for part in body.get("fieldSelector", "").split(",")}
        found = [self.pod(name, body=None, headers=headers) for name in self.applications]
        items = [pod for pod in found if wanted <= pod["metadata"]["labels"].items() and pod["status"]["phase"] not in phases]
        return {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}

    def pod(self, name: str, *, body: Any, headers: dict[str, str]) -> Any:
        """Return the pod of a driver."""
        state, _ = self._state(name)
        code = {"succeeded": 0, "failed": 1}.get(state)
        now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        told = {"running": {"startedAt": now}} if code is None else {"terminated": {"exitCode": code, "finishedAt": now}}
        image = self.applications[name]["spec"].get("image", "spark")
        container = {"name": _CONTAINER, "image": image, "imageID": image, "restartCount": 0, "state": told}
        container |= {"ready": code is None, "started": code is None}
        return {
            "kind": "Pod",
            "apiVersion": "v1",
            "metadata": {"name": f"{name}-driver", "namespace": NAMESPACE, "uid": f"uid-{name}", "labels": self._labels[name]},
            "spec": {"containers": [{"name": _CONTAINER, "image": image}]},
            "status": {"phase": _STATES[state][1], "containerStatuses": [container], "startTime": now},
        }

    def label(self, name: str, *, body: Any, headers: dict[str, str]) -> Any:
        """Change the labels of a pod."""
        self._labels[name] |= body.get("metadata", {}).get("labels", {})
        return self.pod(name, body=None, headers=headers)

    def log(self, name: str, *, body: Any, headers: dict[str, str]) -> Any:
        """Return the output of a driver; if it is followed, when the driver has ended."""
        if body.get("follow") == "True":
            self.drivers.wait(name)
        now = datetime.now(UTC).isoformat().replace("+00:00", "Z") + " "
        lines = self._state(name)[1].splitlines(keepends=True)
        return "".join((now if body.get("timestamps") == "True" else "") + line for line in lines)

    def events(self, *, body: Any, headers: dict[str, str]) -> Any:
        """Return no events."""
        return {"kind": "EventList", "apiVersion": "v1", "metadata": {}, "items": []}

    def _state(self, name: str) -> tuple[str, str]:
        if name not in self.applications:
            raise Refused(404, f"There is no SparkApplication {name}")
        return self.drivers.state(name)
