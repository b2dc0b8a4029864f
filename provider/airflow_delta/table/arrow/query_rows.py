"""The rows of a source that SQL or a path names, read in the worker: of a view, of a Delta table, of Parquet files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_delta.contract.partition_texts import partition_text
from airflow_delta.contract.payloads import Json
from airflow_delta.contract.plain_schema import plain_type
from airflow_delta.contract.schema import find_field, variant_columns
from airflow_delta.contract.zones import zoneless_values
from airflow_delta.exceptions import DeltaFileNotFoundException, DeltaIllegalArgumentException
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.data_files.group_rows import RowSelection
from airflow_delta.log.schema.partition_values import is_zoneless
from airflow_delta.log.schema.types import DataType, StructType, arrow_type, as_nullable, struct_of, to_json, type_to_json
from airflow_delta.log.storage.place import store_place
from airflow_delta.table.arrow.data_schema import data_schema
from airflow_delta.table.arrow.rewrite.memory import MemoryBound
from airflow_delta.table.arrow.rewrite.read_plan import PlanReader
from airflow_delta.table.arrow.row_checks import needs_spark
from airflow_delta.table.arrow.source import Source
from airflow_delta.table.arrow.source_files import read_arrow_files
from airflow_delta.table.expressions.problems import NotDecided
from airflow_delta.table.expressions.query import RelationQuery, SelectItem, parse_query
from airflow_delta.table.expressions.row_expression import RowExpression, columns_of, columns_under, row_expression
from airflow_delta.table.positions.files.pattern import SourcePattern, matching
from airflow_delta.table.positions.files.records import LoadedFile
from airflow_delta.table.positions.files.unloaded import SourceFiles
from airflow_delta.table.read.read_table import read_table, snapshot_of

if TYPE_CHECKING:
    from airflow_delta.contract.payloads import ScanPlan
    from airflow_delta.contract.request import StageRequest
    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.log.snapshot import Snapshot
    from airflow_delta.table.expressions.row_expression import Resolve

Read = Callable[[Sequence[str], "RowExpression | None"], Iterator[pa.RecordBatch]]
"""Yields columns of rows; at least of those for which a condition is true, if there is one."""

_ALL = RelationQuery((SelectItem(None, None),), None, "", None, None)


@dataclass(frozen=True, slots=True)
class _Relation:
    """Rows that a query selects from.

    :param schema: in JSON form, as Spark shows it.
    """

    schema: Json
    read: Read

    @property
    def struct(self) -> StructType:
        return struct_of(self.schema)


def named_rows(
    request: StageRequest,
    named: Mapping[str, Any],
    tables: Mapping[str, DeltaLog],
    open_at: Callable[[str], DeltaLog],
    *,
    max_memory: int | None = None,
) -> Source:
    """Return the rows of a source.

    :param named: ``sql``, or ``path`` with ``format`` and ``options``.
    :param tables: the logs of the views of the request, by name.
    :param open_at: returns the log of a location that the source names.
    :param max_memory: bytes of memory for deletion vectors of the views; default: a quarter of what this process may have.
    :raises DeltaUnsupportedOperationException: if only Spark reads it.
    """
    rows = _NamedRows(request, tables, open_at, MemoryBound(request, max_memory))
    try:
        return rows.of_query(str(named["sql"])) if named.get("sql") else rows.of_path(named)
    except NotDecided as error:
        raise needs_spark(request, f"is merged with a source that is not read here ({error})") from error


class _NamedRows:
    def __init__(
        self, request: StageRequest, tables: Mapping[str, DeltaLog], open_at: Callable[[str], DeltaLog], memory: MemoryBound
    ) -> None:
        self._request, self._tables, self._open_at, self._memory = request, tables, open_at, memory
        self._plans: dict[str, ScanPlan] = {found.view.lower(): found.scan for found in request.sources if found.view is not None}
        self._plans |= {view.name.lower(): view.scan for view in request.views}

    def of_query(self, sql: str) -> Source:
        query = parse_query(sql)
        if query.format is not None:
            relation = self._at(query.format, query.relation, {})
        else:
            plan = self._plans.get(query.relation.lower())
            if plan is None:
                raise NotDecided(f"{query.relation} is not a table that it knows: those are {{{{ table }}}} and read_versions")
            relation = self._planned(self._tables[query.relation.lower()], plan)
        return _selected(query, relation)

    def of_path(self, named: Mapping[str, Any]) -> Source:
        form, path = str(named.get("format") or "parquet").lower(), named.get("path")
        if named.get("conn_id"):
            raise NotDecided(f"it is read with the connection {named['conn_id']!r}")
        if not path:
            raise NotDecided(f"its format is {form}, and it has no path")
        return _selected(_ALL, self._at(form, str(path), named.get("options") or {}))

    # -- relations ------------------------------------------------------------------------------------------------------------

    def _planned(self, log: DeltaLog, plan: ScanPlan) -> _Relation:
        if plan.predicate is not None:
            raise NotDecided(f"only the rows {plan.predicate} of it are read")
        reader, zoneless = PlanReader(log, plan, None, self._memory), zoneless_values(plan)

        def read(columns: Sequence[str], where: RowExpression | None) -> Iterator[pa.RecordBatch]:
            _check_zones(zoneless, columns)
            selection = None
            if where is not None and where.columns:
                selection = RowSelection(
                    frozenset(where.columns), where.true, lambda footer, _names: [True] * footer.num_row_groups
                )
            return (rows for _, rows in reader.columns(columns, plan.files, selection))

        return _Relation(_plain(json.loads(plan.schema_string)), read)

    def _at(self, form: str, path: str, options: Mapping[str, Any]) -> _Relation:
        if "://" not in path and not path.startswith("/"):
            raise NotDecided(f"{path!r} is not an absolute path")
        if form == "delta":
            return self._delta(path, options)
        if form != "parquet" or options:
            raise NotDecided(f"its format is {form}" if form != "parquet" else f"it has the options {', '.join(options)}")
        return self._parquet(path)

    def _delta(self, path: str, options: Mapping[str, Any]) -> _Relation:
        if others := [name for name in options if name.lower() != "versionasof"]:
            raise NotDecided(f"it has the option {others[0]}")
        log, request = self._open_at(path), self._request
        if store_place(log.store).key == store_place(self._open_at(request.table).store).key:  # by any link or spelling
            raise request.error(
                DeltaIllegalArgumentException,
                f"The source of {request.task_id!r} reads the table {log.uri} itself by its path, and the commit would not know. "
                "Write {{ table }} in SQL. Nothing was written.",
            )
        given = next(iter(options.values()), None)
        if given is not None and not str(given).strip().isdecimal():
            raise NotDecided(f"versionAsOf is {given!r}")
        version = log.update().version if given is None else int(given)
        snapshot = snapshot_of(log, version)
        zoneless = _zoneless(snapshot)

        def read(columns: Sequence[str], _where: RowExpression | None) -> Iterator[pa.RecordBatch]:
            _check_zones(zoneless, columns)
            wanted = list(columns) or [snapshot.schema.fields[0].name]
            return iter(read_table(log, version=version, columns=wanted).to_reader())

        return _Relation(_plain(json.loads(to_json(snapshot.schema))), read)

    def _parquet(self, path: str) -> _Relation:
        pattern = SourcePattern.parse(path, recursive=True)
        store = self._open_at(pattern.base).store
        directory, statuses = matching(store, pattern)
        inside = len(directory) + 1 if directory else 0
        if deep := next((status.path for status in statuses if "/" in status.path[inside:]), None):
            raise NotDecided(f"it has directories in it, as of {deep}, of which Spark may make columns")
        if not statuses:
            raise self._request.error(
                DeltaFileNotFoundException, f"The source {path} of {self._request.task_id!r} has no files. Nothing was written."
            )
        files = tuple(
            LoadedFile(path=status.path, size=status.size, modification_time=status.modification_time, etag=status.etag)
            for status in sorted(statuses, key=lambda status: status.path)
        )
        found = SourceFiles(store, path, None, files, directory)
        rows = read_arrow_files(found, StructType(()), alike=True)

        def read(_columns: Sequence[str], _where: RowExpression | None) -> Iterator[pa.RecordBatch]:
            yield from rows
            found.check()  # they are those that were there when it began

        return _Relation(data_schema(rows.schema, whose=f"The source {path}"), read)


def _selected(query: RelationQuery, relation: _Relation) -> Source:
    """Return what a query selects."""
    struct = relation.struct
    named = columns_of(struct)
    resolve = named if query.alias is None else columns_under(named, query.alias)
    where = None if query.where is None else row_expression(query.where, resolve)
    columns: list[tuple[Json, str | RowExpression]] = []
    for item in query.items:
        if item.text is None:
            columns += [(field, str(field["name"])) for field in relation.schema["fields"]]
            continue
        found = row_expression(item.text, _without_later_names(resolve, columns))
        columns.append((_field(str(item.name), found.data_type, _declared(item, found, resolve, relation.schema)), found))
    needed = {name for _, value in columns for name in ([value] if isinstance(value, str) else value.columns)}
    read = sorted({*needed, *(() if where is None else where.columns)})
    if variants := variant_columns({"fields": [field for field in relation.schema["fields"] if field["name"] in read]}):
        raise NotDecided(f"it has the variant column {variants[0]}")
    declared: Json = {"type": "struct", "fields": [field for field, _ in columns]}
    kinds = [arrow_type(as_nullable(field.data_type)) for field in struct_of(declared)]
    schema = pa.schema([pa.field(str(field["name"]), kind) for (field, _), kind in zip(columns, kinds, strict=True)])

    def batches() -> Iterator[pa.RecordBatch]:
        for given in relation.read(read, where):
            rows = given if where is None else given.filter(where.true(given))
            if rows.num_rows:
                found = [rows.column(value) if isinstance(value, str) else value.values(rows) for _, value in columns]
                fitted = [array if array.type == kind else array.cast(kind) for array, kind in zip(found, kinds, strict=True)]
                yield pa.RecordBatch.from_arrays(fitted, schema=schema)

    return Source(schema, batches(), declared)


def _without_later_names(resolve: Resolve, columns: Sequence[tuple[Json, Any]]) -> Resolve:
    """Return the function that refuses a name that a query has given to a column before."""
    given = {str(field["name"]).lower() for field, _ in columns}

    def found(parts: tuple[str, ...]) -> tuple[str, tuple[str, ...], DataType] | None:
        known = resolve(parts)
        if known is None and parts[0].lower() in given:
            raise NotDecided(f"{parts[0]} is the name of another column of the query")
        return known

    return found


def _field(name: str, kind: DataType, declared: Json | None) -> Json:
    data_type = type_to_json(kind) if declared is None else declared["type"]
    return {"name": name, "type": data_type, "nullable": True, "metadata": {} if declared is None else declared["metadata"]}


def _declared(item: SelectItem, found: RowExpression, resolve: Resolve, schema: Json) -> Json | None:
    """Return the column or field that an expression is, if it is one: what is declared of it comes with it."""
    column = None if item.column is None else resolve(item.column)
    if column is None or not found.columns:
        return None
    field = find_field(schema, column[0])
    for name in column[1]:
        field = None if field is None or isinstance(field["type"], str) else find_field(field["type"], name)
    return field


def _plain(schema: Json) -> Json:
    plain = plain_type(schema)
    return {} if isinstance(plain, str) else plain


def _check_zones(zoneless: Mapping[str, Any], columns: Sequence[str]) -> None:
    if named := next((name for name in columns if name in zoneless), None):
        raise NotDecided(f"it has partitions whose {named} lacks a time zone: it is in that of Spark's session")


def _zoneless(snapshot: Snapshot) -> dict[str, Any]:
    """Return the partition columns with values without a time zone."""
    mapped = snapshot.definition.column_mapping != "none"
    found: dict[str, Any] = {}
    for name in snapshot.metadata.partition_columns:
        field = snapshot.schema.find(name)
        if field is None or field.data_type.name != "timestamp":
            continue
        key = field.physical_name if mapped else field.name
        texts = (partition_text(file.partition_values, key) for file in snapshot.add_files())
        if any(text is not None and is_zoneless(text) for text in texts):
            found[field.name] = True
    return found
