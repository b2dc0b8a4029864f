"""Airflow's own accessors of the state stores and task instances; what they ask of the supervisor is answered from memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

from airflow.sdk import Asset
from airflow.sdk._shared.state import TaskScope
from airflow.sdk.exceptions import ErrorType
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import (
    AssetStateStoreResult,
    ErrorResponse,
    OKResponse,
    TaskBreadcrumbsResult,
    TaskStatesResult,
    TaskStateStoreResult,
    XComResult,
    XComSequenceSliceResult,
)
from airflow.sdk.execution_time.context import AssetStateStoreAccessors, TaskStateStoreAccessor


class Supervisor:
    """Answers the messages of the accessors, by the name of the asset or the id of the task instance, and the key.

    :param others: answers every other message; default: there is no connection, or whatever else it asks for.
    """

    def __init__(self, others: Callable[[Any], Any] | None = None) -> None:
        self.values: dict[tuple[Any, str], Any] = {}
        self.xcoms: dict[tuple[str, str, int, str], Any] = {}
        """By run, task, map index and key."""
        self.states: Mapping[str, str] | None = None
        """Of the task instances of every run, named as Airflow names them (``a``, ``a_1``); ``None``: all have succeeded."""
        self.others = others or (lambda _: ErrorResponse(error=ErrorType.CONNECTION_NOT_FOUND))

    def send(self, msg: Any) -> Any:
        match type(msg).__name__:
            case "SetAssetStateStoreByName":
                return self._set(msg.name, msg)
            case "GetAssetStateStoreByName":
                return self._get(msg.name, msg, AssetStateStoreResult, ErrorType.ASSET_STORE_NOT_FOUND)
            case "SetTaskStateStore":
                return self._set(msg.ti_id, msg)
            case "GetTaskStateStore":
                return self._get(msg.ti_id, msg, TaskStateStoreResult, ErrorType.TASK_STORE_NOT_FOUND)
            case "DeleteTaskStateStore":
                self.values.pop((msg.ti_id, msg.key), None)
                return OKResponse(ok=True)
            case "ClearTaskStateStore":
                self.values = {place: value for place, value in self.values.items() if place[0] != msg.ti_id}
                return OKResponse(ok=True)
            case "GetTaskStates":
                states = {run_id: self._states_of(msg.task_ids) for run_id in msg.run_ids}
                return TaskStatesResult(task_states=states)
            case "GetTaskBreadcrumbs":
                return TaskBreadcrumbsResult(breadcrumbs=[])
            case "SetXCom":
                self.xcoms[self._xcom(msg)] = msg.value
                return OKResponse(ok=True)
            case "GetXCom":
                return XComResult(key=msg.key, value=self.xcoms.get(self._xcom(msg)))
            case "GetXComSequenceSlice":
                asked = (msg.run_id, msg.task_id, msg.key)
                found = [value for (run_id, task_id, _, key), value in self.xcoms.items() if (run_id, task_id, key) == asked]
                return XComSequenceSliceResult(root=found)
        return self.others(msg)

    async def asend(self, msg: Any) -> Any:
        return self.send(msg)

    def _states_of(self, task_ids: list[str]) -> dict[str, str]:
        if self.states is None:
            return dict.fromkeys(task_ids, "success")
        instance = re.compile(rf"({'|'.join(map(re.escape, task_ids))})(_\d+)?")
        return {name: state for name, state in self.states.items() if instance.fullmatch(name)}

    @staticmethod
    def _xcom(message: Any) -> tuple[str, str, int, str]:
        return message.run_id, message.task_id, -1 if message.map_index is None else message.map_index, message.key

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
