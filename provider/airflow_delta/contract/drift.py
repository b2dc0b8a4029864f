"""Whether new rows have exactly an expected schema (``schema_policy="strict"``), compared on Spark's JSON form of schemas.

Columns and fields of structs match by name in the same spelling, in any order. Types are equal, also inside structs, arrays and
maps. Nullability does not count: sources seldom know it, and a null in a NOT NULL column is refused when it is written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from airflow_delta.contract.operations import WriteArguments
from airflow_delta.contract.payloads import Json, Payload
from airflow_delta.contract.request import StageRequest
from airflow_delta.contract.schema import Type, fields_by_name, type_name
from airflow_delta.contract.schema_string import parse_struct
from airflow_delta.contract.table_rules import TableRules
from airflow_delta.exceptions import SchemaDriftException
from airflow_delta.light_dataclasses import dataclass

NEW, MISSING, TYPE, SPELLING = "new", "missing", "type", "spelling"


@dataclass(frozen=True, kw_only=True, slots=True)
class SchemaDifference(Payload):
    """One difference.

    :param kind: ``new`` (not expected), ``missing``, ``type`` or ``spelling`` (equal but for the case of letters).
    :param column: path: ``a.b`` is a field of a struct, ``a[element]``, ``a[key]`` and ``a[value]`` are in an array or a map.
    :param expected: type, or spelling; ``None`` if nothing is expected there.
    :param given: type, or spelling; ``None`` if it is missing.
    """

    kind: str
    column: str
    expected: str | None = None
    given: str | None = None

    def __str__(self) -> str:
        if self.kind == NEW:
            return f"new column {self.column} ({self.given})"
        if self.kind == MISSING:
            return f"missing column {self.column} ({self.expected})"
        return f"column {self.column}: expected {self.expected}, got {self.given}"


def check_contract(data: Json, request: StageRequest) -> None:
    """Refuse new rows that a strict stage does not expect.

    :param data: schema of the new rows.
    """
    arguments = WriteArguments.of(request)
    if arguments.expected_schema is not None:
        check_schema(
            data,
            parse_struct(arguments.expected_schema),
            table=request.table,
            version=request.read_version,
            rules=request.rules,
            adds_columns=request.merge_schema or request.overwrite_schema or arguments.create is not None,
        )


def check_schema(
    data: Json,
    expected: Json,
    *,
    table: str,
    version: int,
    rules: TableRules | None = None,
    adds_columns: bool = False,
) -> None:
    """Refuse a schema that is not the expected one.

    :param data: schema of the new rows.
    :param rules: of the table: what it computes (generated, default and identity columns) may be missing.
    :param adds_columns: the write may add columns to the table.
    :raises SchemaDriftException: with every difference.
    """
    found = list(differences(data, expected, computed=computed_columns(TableRules() if rules is None else rules)))
    if found:
        where = f"table {table}" + (f" version {version}" if version >= 0 else "")
        is_new = version >= 0 and not adds_columns and any(difference.kind == NEW for difference in found)
        more = ", with merge_schema=True for a column that the table does not have" if is_new else ""
        raise SchemaDriftException(
            f"The schema of the rows for {where} is not the expected one (schema_policy='strict'): "
            f"{'; '.join(map(str, found))}. Nothing was written. Correct the source; or accept the change: alter the table, or "
            f"change expected_schema{more}.",
            table=table,
            version=version if version >= 0 else None,
            differences=[difference.to_dict() for difference in found],
        )


def differences(data: Json, expected: Json, *, computed: Collection[str] = (), prefix: str = "") -> Iterator[SchemaDifference]:
    """Yield how the fields of a struct differ from those expected.

    :param computed: names, in lower case, of columns that may be missing.
    """
    there, known = fields_by_name(data), fields_by_name(expected)
    for field in expected["fields"]:
        path, given = prefix + field["name"], there.get(field["name"].lower())
        if given is None:
            if field["name"].lower() not in computed:
                yield SchemaDifference(kind=MISSING, column=path, expected=type_name(field["type"]))
            continue
        if given["name"] != field["name"]:
            yield SchemaDifference(kind=SPELLING, column=path, expected=field["name"], given=given["name"])
        yield from _of_types(given["type"], field["type"], path)
    for field in data["fields"]:
        if field["name"].lower() not in known:
            yield SchemaDifference(kind=NEW, column=prefix + field["name"], given=type_name(field["type"]))


def computed_columns(rules: TableRules) -> set[str]:
    """Return the names of the columns that a write computes if the data lack them, in lower case."""
    names = (*rules.generated, *rules.defaults, *(identity.column for identity in rules.identities))
    return {name.lower() for name in names}


def _of_types(given: Type, expected: Type, path: str) -> Iterator[SchemaDifference]:
    kinds = [one if isinstance(one, str) else one["type"] for one in (given, expected)]
    if kinds[0] != kinds[1]:
        yield SchemaDifference(kind=TYPE, column=path, expected=type_name(expected), given=type_name(given))
    elif kinds[0] == "struct":
        yield from differences(given, expected, prefix=f"{path}.")
    elif kinds[0] == "array":
        yield from _of_types(given["elementType"], expected["elementType"], f"{path}[element]")
    elif kinds[0] == "map":
        yield from _of_types(given["keyType"], expected["keyType"], f"{path}[key]")
        yield from _of_types(given["valueType"], expected["valueType"], f"{path}[value]")
