"""GENERATE as a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_delta import engine
from airflow_delta.contract.kinds import LOCATION
from airflow_delta.hooks.delta import DeltaHook
from airflow_delta.links.delta import DeltaTableLink
from airflow_delta.retry_policies import FINAL_ERRORS
from airflow_delta.tasks.base import DeltaOperator
from airflow_delta.tasks.declared import parameter

if TYPE_CHECKING:
    from airflow.sdk import Context


class DeltaGenerateOperator(DeltaOperator):
    """Write the symlink manifests of a table's latest version (``GENERATE symlink_format_manifest``), in the worker.

    They list the data files for readers that do not know the Delta log. Nothing is committed; a rerun writes them again.

    Returns JSON: ``table``, ``version``, ``location`` (directory of the manifests) and ``numManifests``.

    :param table: URI, absolute path, or name below the connection's base path. (templated)
    :param delta_conn_id: connection of type ``delta``. (templated)
    """

    operator_extra_links = (DeltaTableLink(),)
    default_retry_policy = FINAL_ERRORS
    ui_color = "#dae8fc"

    table: str = parameter(templated=True, kind=LOCATION)
    delta_conn_id: str = parameter(default=DeltaHook.default_conn_name, templated=True)

    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002 - an operator without a commit needs none
        """Return what was written.

        :raises DeltaTableNotFoundException: if there is no table.
        :raises DeltaUnsupportedOperationException: if the table has deletion vectors or column mapping.
        """
        result = engine.generate(DeltaHook(self.delta_conn_id).get_log(self.table))
        self.log.info("%s manifests of version %s of %s.", result.num_manifests, result.version, result.table)
        return result.to_dict()
