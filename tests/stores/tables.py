"""A table on a store under test: the provider's tasks that work on it, and readers that share no code with the provider."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import obstore
from obstore.store import AzureStore, GCSStore, S3Store

from support import readers

Row = tuple[Any, ...]


def client(options: Mapping[str, str], root: str, **settings: Any) -> Any:
    """Return obstore's client of a container, without retries."""
    config: Any = {key: value for key, value in options.items() if not key.endswith("allow_http")}
    scheme, _, container = root.partition("://")
    kind: Any = {"s3": S3Store, "az": AzureStore, "gs": GCSStore}[scheme]
    return kind(container, config=config, client_options={"allow_http": True, **settings}, retry_config={"max_retries": 0})


@functools.cache
def _dag() -> Any:
    """The Dag that has all tasks: else one would take what the others have committed for that of tasks that are gone."""
    from airflow.sdk import DAG

    return DAG("a_dag", schedule=None)


def run_task(operator: Any, **states: str) -> Any:
    """Execute an operator as a task of one Dag run; what it returns has been JSON, as an XCom is.

    :param states: of the stages that a commit waits for.
    """
    from support.running_tasks import context

    if not operator.has_dag():
        for tasks in (_dag().task_dict, _dag().task_group.children):  # a later task of the same name takes its place
            tasks.pop(operator.task_id, None)
        _dag().task_group.used_group_ids.discard(operator.task_id)
        _dag().add_task(operator)
    return json.loads(json.dumps(operator.execute(context(operator, states=states))))


def copy_to(directory: Path, container: Any, prefix: str) -> Path:
    """Copy the objects below a prefix to local files."""
    for page in obstore.list(container, f"{prefix}/"):
        for meta in page:
            if not meta["size"]:  # the marker of a directory
                continue
            target = directory / meta["path"]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(bytes(obstore.get(container, meta["path"]).bytes()))
    return directory / prefix


def rows_of_copy(directory: Path, container: Any, prefix: str) -> list[Row]:
    """Return the rows of a table's copy, on which delta-rs, DuckDB and Polars agree."""
    return sorted(tuple(row.values()) for row in readers.rows(copy_to(directory, container, prefix)))


def rows_on_store(uri: str, options: Mapping[str, str]) -> list[Row]:
    """Return the rows of a table as delta-rs reads them from the store."""
    import deltalake

    table = deltalake.DeltaTable(uri, storage_options={**options, "allow_http": "true"}).to_pyarrow_table()
    return sorted(tuple(row.values()) for row in table.to_pylist())


def rows_through_duckdb(uri: str, options: Mapping[str, str]) -> list[Row]:
    """Return the rows of a table as DuckDB reads them from an S3 store: its extensions for Delta and for HTTP."""
    import duckdb_extension_httpfs

    database = readers._duckdb()
    [extension] = Path(duckdb_extension_httpfs.__file__).parent.rglob("httpfs.duckdb_extension")
    database.execute(f"LOAD '{extension}'")
    host = options["aws_endpoint_url"].removeprefix("http://")
    key, secret, region = (options[f"aws_{name}"] for name in ("access_key_id", "secret_access_key", "region"))
    database.execute(
        f"CREATE OR REPLACE SECRET lake (TYPE s3, KEY_ID '{key}', SECRET '{secret}', REGION '{region}', ENDPOINT '{host}', "
        "URL_STYLE 'path', USE_SSL false)"
    )
    return sorted(database.execute("SELECT * FROM delta_scan(?)", [uri]).fetchall())
