"""Airflow's own accessors of the state stores; what they send to the supervisor is answered from memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

from airflow.sdk import Asset
from airflow.sdk._shared.state import TaskScope
from airflow.sdk.exceptions import ErrorType
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import AssetStateStoreResult, ErrorResponse, OKResponse, TaskStateStoreResult
from airflow.sdk.execution_time.context import AssetStateStoreAccessors, TaskStateStoreAccessor


class Supervisor:
    """Answers the messages of the accessors, by the name of the asset or the id of the task instance, and the key.

    :param others: answers every other message; default: there is no connection, or whatever else it asks for.
    """

    def __init__(self, others: Callable[[Any], Any] | None = None) -> None:
        self.values: dict[tuple[Any, str], Any] = {}
        self._others = others or (lambda _: ErrorResponse(error=ErrorType.CONNECTION_NOT_FOUND))

    def send(self, message: Any) -> Any:
        match type(message).__name__:
            case "SetAssetStateStoreByName":
                return self._set(message.name, message)
            case "GetAssetStateStoreByName":
                return self._get(message.name, message, AssetStateStoreResult, ErrorType.ASSET_STORE_NOT_FOUND)
            case "SetTaskStateStore":
                return self._set(message.ti_id, message)
            case "GetTaskStateStore":
                return self._get(message.ti_id, message, TaskStateStoreResult, ErrorType.TASK_STORE_NOT_FOUND)
            case "DeleteTaskStateStore":
                self.values.pop((message.ti_id, message.key), None)
                return OKResponse(ok=True)
            case "ClearTaskStateStore":
                self.values = {place: value for place, value in self.values.items() if place[0] != message.ti_id}
                return OKResponse(ok=True)
        return self._others(message)

    async def asend(self, message: Any) -> Any:
        return self.send(message)

    def _set(self, owner: Any, message: Any) -> Any:
        self.values[owner, message.key] = message.model_dump(mode="json")["value"]
        return OKResponse(ok=True)

    def _get(self, owner: Any, message: Any, found: Any, missing: Any) -> Any:
        place = (owner, message.key)
        return found(value=self.values[place]) if place in self.values else ErrorResponse(error=missing)


class StateStore(AssetStateStoreAccessors):
    """What the triggerer gives to a watcher of assets.

    :param assets: names of the assets that share the trigger.
    """

    def __init__(self, *assets: str) -> None:
        super().__init__(inlets=[Asset(name=name, uri=f"x://assets/{name}") for name in assets or ("an_asset",)])

    @property
    def versions(self) -> list[int]:
        return [value["version"] for value in task_runner.SUPERVISOR_COMMS.values.values()]


class TaskStateStore(TaskStateStoreAccessor):
    """What a running task has as ``task_state_store``, which outlives a try and a clear."""

    def __init__(self) -> None:
        super().__init__(uuid4(), TaskScope(dag_id="a_dag", run_id="a_run", task_id="a_task"))

    @property
    def kept(self) -> dict[str, Any]:
        """What the supervisor keeps of this task instance."""
        return {key: value for (owner, key), value in task_runner.SUPERVISOR_COMMS.values.items() if owner == self._ti_id}
