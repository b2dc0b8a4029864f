"""OpenLineage datasets and facets of tables. Needs ``apache-airflow-providers-openlineage`` (extra ``openlineage``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from airflow.providers.openlineage.extractors import OperatorLineage
from openlineage.client.event_v2 import InputDataset, OutputDataset
from openlineage.client.facet_v2 import (
    DatasetFacet,
    InputDatasetFacet,
    OutputDatasetFacet,
    data_quality_assertions_dataset,
    dataset_version_dataset,
    input_statistics_input_dataset,
    lifecycle_state_change_dataset,
    output_statistics_output_dataset,
    schema_dataset,
    storage_dataset,
    symlinks_dataset,
)

from airflow_delta.contract.audit import PER_COLUMN, WARN, AuditCheck
from airflow_delta.contract.location import dataset_name
from airflow_delta.log.table_definition import TableDefinition
from airflow_delta.tasks.openlineage.lineage import Lineage, TableUse


def operator_lineage(lineage: Lineage) -> OperatorLineage[Any, Any]:
    """Return the lineage of a task in the form of Airflow's extractors."""
    return OperatorLineage(
        inputs=[input_dataset(use) for use in lineage.inputs.values()],
        outputs=[output_dataset(use) for use in lineage.outputs.values()],
    )


def input_dataset(use: TableUse) -> InputDataset:
    """Return the dataset of a table that was read."""
    namespace, name = dataset_name(use.uri)
    facets: dict[str, InputDatasetFacet] = {}
    if _is_counted(use):
        facets["inputStatistics"] = input_statistics_input_dataset.InputStatisticsInputDatasetFacet(
            rowCount=use.num_records, size=use.num_bytes, fileCount=use.num_files
        )
    return InputDataset(namespace=namespace, name=name, facets=dataset_facets(use), inputFacets=facets)


def output_dataset(use: TableUse) -> OutputDataset:
    """Return the dataset of a table that was written; its statistics are those of the commit, not of the table."""
    namespace, name = dataset_name(use.uri)
    facets: dict[str, OutputDatasetFacet] = {}
    if _is_counted(use):
        facets["outputStatistics"] = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
            rowCount=use.num_records, size=use.num_bytes, fileCount=use.num_files
        )
    return OutputDataset(namespace=namespace, name=name, facets=dataset_facets(use), outputFacets=facets)


def dataset_facets(use: TableUse) -> dict[str, DatasetFacet]:
    """Return the facets of a table at the version that was read or written."""
    facets: dict[str, Any] = {"storage": storage_dataset.StorageDatasetFacet(storageLayer="delta", fileFormat="parquet")}
    if use.version is not None:
        facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion=str(use.version))
    if use.schema_string:
        facets["schema"] = schema_dataset.SchemaDatasetFacet(
            fields=schema_fields(TableDefinition.of_rows(use.schema_string).struct)
        )
    if use.lifecycle is not None:
        facets["lifecycleStateChange"] = lifecycle_state_change_dataset.LifecycleStateChangeDatasetFacet(
            lifecycleStateChange=lifecycle_state_change_dataset.LifecycleStateChange(use.lifecycle)
        )
    if use.symlink is not None:
        conn_id, name = use.symlink
        identifier = symlinks_dataset.Identifier(namespace=f"delta://connection/{conn_id}", name=name, type="TABLE")
        facets["symlinks"] = symlinks_dataset.SymlinksDatasetFacet(identifiers=[identifier])
    if use.checks:  # by its class of an input only; dbt's integration puts it on any dataset, too
        facets["dataQualityAssertions"] = data_quality_assertions_dataset.DataQualityAssertionsDatasetFacet(
            assertions=[_assertion(check) for check in use.checks]
        )
    return facets


def _assertion(check: AuditCheck) -> data_quality_assertions_dataset.Assertion:
    rule, _, column = check.name.partition(".")
    of_column = bool(column) and rule in PER_COLUMN
    return data_quality_assertions_dataset.Assertion(
        assertion=rule if of_column else check.name,
        success=check.passed,
        column=column if of_column else None,
        severity="warn" if check.severity == WARN else "error",
        name=check.name,
        description=check.message or None,
    )


def schema_fields(struct: Mapping[str, Any]) -> list[schema_dataset.SchemaDatasetFacetFields]:
    """Return the fields of a struct in Spark's JSON form."""
    return [_field(column, number) for number, column in enumerate(struct["fields"], start=1)]


def _field(column: Mapping[str, Any], number: int) -> schema_dataset.SchemaDatasetFacetFields:
    comment = (column.get("metadata") or {}).get("comment")
    return _named(column["name"], column["type"], description=comment, ordinal_position=number)


def _named(name: str, data_type: Any, **more: Any) -> schema_dataset.SchemaDatasetFacetFields:
    """Return a field; elements of arrays and entries of maps are fields, too, with OpenLineage's names."""
    text, nested = _type(data_type)
    return schema_dataset.SchemaDatasetFacetFields(name=name, type=text, fields=list(nested), **more)


def _type(data_type: Any) -> tuple[str, Iterable[schema_dataset.SchemaDatasetFacetFields]]:
    if not isinstance(data_type, Mapping):
        return str(data_type), ()
    kind = data_type["type"]
    if kind == "struct":
        return kind, schema_fields(data_type)
    if kind == "array":
        return kind, (_named("_element", data_type["elementType"]),)
    if kind == "map":
        return kind, (_named("key", data_type["keyType"]), _named("value", data_type["valueType"]))
    return str(kind), ()


def _is_counted(use: TableUse) -> bool:
    return any(number is not None for number in (use.num_records, use.num_files, use.num_bytes))
