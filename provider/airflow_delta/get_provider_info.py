"""The provider's description for Airflow (entry point ``apache_airflow_provider``)."""

from __future__ import annotations

from typing import Any

_NAME = "Delta Lake"
_OTHER_LOCATIONS = {
    "label": "Other locations",
    "description": "URIs, separated by commas: where files of a table may be outside of its bucket.",
    "schema": {"type": ["string", "null"]},
}
_SPARK_FIELDS = {
    "spark_credentials": {
        "label": "Credentials of Spark",
        "description": "Empty: Spark gets those of this connection. own: it has its own.",
        "schema": {"type": ["string", "null"], "enum": ["own", None]},
    },
    "spark_packages": {
        "label": "Packages of Spark",
        "description": "auto: the connector to the store. Or Maven coordinates. Empty: Spark has its own.",
        "schema": {"type": ["string", "null"]},
    },
}


def get_provider_info() -> dict[str, Any]:
    """Return the provider's description in the form of Airflow's ``provider_info.schema.json``."""
    return {
        "package-name": "airflow-provider-delta",
        "name": _NAME,
        "description": "One `Delta Lake <https://delta.io/>`__ transaction across the tasks of a Dag run.",
        "integrations": [{"integration-name": _NAME, "external-doc-url": "https://docs.delta.io/", "tags": ["software"]}],
        "operators": [
            {
                "integration-name": _NAME,
                "python-modules": [
                    "airflow_delta.operators.alter",
                    "airflow_delta.operators.arrow",
                    "airflow_delta.operators.audit",
                    "airflow_delta.operators.clone",
                    "airflow_delta.operators.convert",
                    "airflow_delta.operators.copy_into",
                    "airflow_delta.operators.create",
                    "airflow_delta.operators.delete_update",
                    "airflow_delta.operators.diff",
                    "airflow_delta.operators.drop_feature",
                    "airflow_delta.operators.generate",
                    "airflow_delta.operators.maintenance",
                    "airflow_delta.operators.merge",
                    "airflow_delta.operators.merge_arrow",
                    "airflow_delta.operators.optimize",
                    "airflow_delta.operators.preview",
                    "airflow_delta.operators.publication",
                    "airflow_delta.operators.pyspark",
                    "airflow_delta.operators.repair",
                    "airflow_delta.operators.restore",
                    "airflow_delta.operators.row_tracking",
                    "airflow_delta.operators.scd2",
                    "airflow_delta.operators.sql",
                    "airflow_delta.operators.stage",
                    "airflow_delta.operators.statistics",
                    "airflow_delta.operators.stream",
                    "airflow_delta.operators.transaction",
                    "airflow_delta.operators.vacuum",
                ],
            }
        ],
        "sensors": [
            {"integration-name": _NAME, "python-modules": ["airflow_delta.sensors.delta", "airflow_delta.sensors.publication"]}
        ],
        "triggers": [
            {"integration-name": _NAME, "python-modules": ["airflow_delta.triggers.delta", "airflow_delta.triggers.publication"]}
        ],
        "hooks": [
            {"integration-name": _NAME, "python-modules": ["airflow_delta.hooks.delta", "airflow_delta.hooks.unity_catalog"]}
        ],
        "connection-types": [
            {
                "connection-type": "delta",
                "hook-class-name": "airflow_delta.hooks.delta.DeltaHook",
                "hook-name": _NAME,
                "ui-field-behaviour": {
                    "hidden-fields": ["port", "schema"],
                    "relabeling": {"host": "Base path", "login": "Access key", "password": "Secret key"},
                    "placeholders": {
                        "host": "s3://lake (table names may be relative to it)",
                        "login": "leave empty to use the worker's credentials",
                        "extra": '{"storage_options": {"AWS_REGION": "eu-west-1", "AWS_ENDPOINT_URL": "https://minio:9000"}}',
                    },
                },
                "conn-fields": {
                    "base_path": {
                        "label": "Base path (instead of the field above)",
                        "description": "URI or local directory of relative table names.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "storage_options": {
                        "label": "Storage options",
                        "description": "Options of the object store as JSON, in any spelling of object_store and delta-rs.",
                        "schema": {"type": ["object", "null"]},
                    },
                    "aws_conn_id": _conn_field("AWS connection", "aws"),
                    "gcp_conn_id": _conn_field("Google Cloud connection", "google_cloud_platform"),
                    "wasb_conn_id": _conn_field("Azure Blob Storage connection", "wasb"),
                    "adls_conn_id": _conn_field("Azure Data Lake connection", "adls"),
                    "other_locations": _OTHER_LOCATIONS,
                    **_SPARK_FIELDS,
                },
            },
            {
                "connection-type": "delta_unity_catalog",
                "hook-class-name": "airflow_delta.hooks.unity_catalog.UnityCatalogHook",
                "hook-name": f"{_NAME} in Unity Catalog",
                "ui-field-behaviour": {
                    "hidden-fields": ["port", "schema", "login"],
                    "relabeling": {"host": "Server", "password": "Token"},
                    "placeholders": {
                        "host": "https://dbc-1234.cloud.databricks.com",
                        "extra": '{"storage_options": {"AWS_REGION": "eu-west-1"}}',
                    },
                },
                "conn-fields": {
                    "storage_options": {
                        "label": "Storage options",
                        "description": "Region, endpoint, ... as JSON. Credentials in them are used instead of the catalog's.",
                        "schema": {"type": ["object", "null"]},
                    },
                    "allow_http": {
                        "label": "Allow HTTP",
                        "description": "Send the token to a server whose URL begins with http://.",
                        "schema": {"type": ["boolean", "null"]},
                    },
                    "other_locations": _OTHER_LOCATIONS,
                    **_SPARK_FIELDS,
                },
            },
        ],
        "config": {
            "delta": {
                "description": "What connections may use of the process that opens a table: docs/security.md.",
                "options": {
                    "process_credentials_in": _option(
                        "Processes whose own credentials (environment, machine, files) connections may use: task, triggerer, "
                        "api_server. In others a connection needs credentials of its own.",
                        "task, triggerer",
                        "task, triggerer, api_server",
                    ),
                    "credential_files": _option(
                        "Files that a connection may name in its storage options, as patterns separated by commas.",
                        "",
                        "/run/secrets/*.json",
                    ),
                    "credential_endpoints": _option(
                        "URLs, separated by commas, that may be asked for credentials, or get those of the process, "
                        "beside the clouds' own.",
                        "",
                        "https://minio.example.com:9000",
                    ),
                },
            }
        },
        "asset-uris": [
            {
                "schemes": ["delta"],
                "handler": "airflow_delta.assets.delta.sanitize_uri",
                "factory": "airflow_delta.assets.delta.create_asset",
                "to_openlineage_converter": "airflow_delta.assets.delta.convert_asset_to_openlineage",
            }
        ],
        "extra-links": [
            "airflow_delta.links.delta.DeltaTableLink",
            "airflow_delta.links.delta.DeltaCommitLink",
            "airflow_delta.links.delta.DeltaTransactionLink",
        ],
        "notifications": ["airflow_delta.notifications.delta.DeltaNotifier"],
        "cli": ["airflow_delta.cli.definition.get_delta_cli_commands"],
        "task-decorators": [
            {"name": "delta_merge", "class-name": "airflow_delta.decorators.delta_merge.delta_merge_task"},
            {"name": "delta_stage", "class-name": "airflow_delta.decorators.delta_stage.delta_stage_task"},
            {"name": "delta_stream", "class-name": "airflow_delta.decorators.delta_stream.delta_stream_task"},
        ],
    }


def _option(description: str, default: str, example: str) -> dict[str, Any]:
    return {"description": description, "version_added": None, "type": "string", "example": example, "default": default}


def _conn_field(label: str, conn_type: str) -> dict[str, Any]:
    return {
        "label": label,
        "description": f"Id of a connection of type {conn_type} whose credentials are used instead of login and password.",
        "schema": {"type": ["string", "null"]},
    }
