"""Airflow's own accessors of the asset state store; what they send to the supervisor is answered from memory."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Asset
from airflow.sdk.exceptions import ErrorType
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import AssetStateStoreResult, ErrorResponse, OKResponse
from airflow.sdk.execution_time.context import AssetStateStoreAccessors


class Supervisor:
    """Answers the messages of the accessors, by the name of the asset and the key."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, str], Any] = {}

    def send(self, message: Any) -> Any:
        kind = type(message).__name__
        place = (message.name, message.key)
        if kind == "SetAssetStateStoreByName":
            self.values[place] = message.model_dump(mode="json")["value"]
            return OKResponse(ok=True)
        assert kind == "GetAssetStateStoreByName", kind
        if place in self.values:
            return AssetStateStoreResult(value=self.values[place])
        return ErrorResponse(error=ErrorType.ASSET_STORE_NOT_FOUND)

    async def asend(self, message: Any) -> Any:
        return self.send(message)


class StateStore(AssetStateStoreAccessors):
    """What the triggerer gives to a watcher of assets.

    :param assets: names of the assets that share the trigger.
    """

    def __init__(self, *assets: str) -> None:
        super().__init__(inlets=[Asset(name=name, uri=f"x://assets/{name}") for name in assets or ("an_asset",)])

    @property
    def versions(self) -> list[int]:
        return [value["version"] for value in task_runner.SUPERVISOR_COMMS.values.values()]
