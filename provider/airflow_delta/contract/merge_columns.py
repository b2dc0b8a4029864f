"""What the clauses of a MERGE set, on Spark or here: columns that the table gets, and what a column does not take."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from airflow_delta.contract.mapping import mapped_schema
from airflow_delta.contract.merge import DELETE, NOT_MATCHED_BY_SOURCE, UPDATE, MergeClause
from airflow_delta.contract.payloads import Json
from airflow_delta.contract.request import StageRequest
from airflow_delta.contract.schema import MAKE_VARIANTS, VARIANT, Type, casts_variants, fields_by_name, type_name, written_schema
from airflow_delta.contract.sql_types import column_path_text, parse_column_path
from airflow_delta.exceptions import (
    DeltaAnalysisException,
    DeltaUnsupportedOperationException,
    IdentityInsertException,
    SchemaMismatchException,
)

Path = tuple[str, ...]

Assigned = dict[str, Any]
"""What a clause sets, by name in lower case: a value and its type, or for a struct of which only fields are set, those."""

NO_FIELDS: Json = {"type": "struct", "fields": []}
"""The type of a struct that the table lacks."""

_PARTS = ("elementType", "keyType", "valueType")
"""Keys of the types within an array or a map."""


def put(assigned: Assigned, path: Path, value: tuple[Any, Type]) -> None:
    """Add what a clause sets a column or field to."""
    *parents, last = (name.lower() for name in path)
    for name in parents:
        assigned = assigned.setdefault(name, {})
    assigned[last] = value


def assigned_values(assigned: Assigned, struct: Json, path: Path = ()) -> Iterator[tuple[Path, Type, Json]]:
    """Yield the path of each value that a clause sets, its type, and the field of the table that gets it."""
    for field in struct["fields"]:
        value, here = assigned.get(field["name"].lower()), (*path, field["name"])
        if isinstance(value, dict):
            yield from assigned_values(value, field["type"], here)
        elif value is not None:
            yield here, value[1], field


def has_field(struct: Type, path: Path) -> bool:
    """Return whether a struct has a field at a path."""
    for name in path:
        field = None if isinstance(struct, str) or struct["type"] != "struct" else fields_by_name(struct).get(name.lower())
        if field is None:
            return False
        struct = field["type"]
    return True


def named_fields(struct: Json, paths: Collection[Path], path: Path = ()) -> Json:
    """Return the struct with only the fields that clauses name.

    :param paths: in lower case.
    """
    kept = []
    for field in struct["fields"]:
        here, kind = (*path, field["name"].lower()), field["type"]
        if here in paths:
            kept.append(field)
        elif not isinstance(kind, str) and kind["type"] == "struct" and any(named[: len(here)] == here for named in paths):
            kept.append({**field, "type": named_fields(kind, paths, here)})
    return {**struct, "fields": kept}


def absent_fields(given: Type, known: Type, *, within: bool = False) -> list[str]:
    """Return the fields of a struct, at every depth, that another struct lacks.

    :param within: also those of structs within arrays and maps.
    """
    if isinstance(given, str) or isinstance(known, str) or given["type"] != known["type"]:
        return []
    if known["type"] != "struct":
        parts = _PARTS if within else ()
        return [name for part in parts if part in known for name in absent_fields(given[part], known[part], within=True)]
    found, there = [], fields_by_name(given)
    for field in known["fields"]:
        mine = there.get(field["name"].lower())
        inner = [] if mine is None else absent_fields(mine["type"], field["type"], within=within)
        found += [field["name"]] if mine is None else [f"{field['name']}.{name}" for name in inner]
    return found


def is_alike(given: Type, wanted: Type) -> bool:
    """Return whether structs, arrays and maps are the same ones in two types, so that only atomic values and variants differ."""
    if VARIANT in (given, wanted):
        return given == "void" or given == wanted or casts_variants(given, wanted)
    if given == "void" or (isinstance(given, str) and isinstance(wanted, str)):
        return True
    if isinstance(given, str) or isinstance(wanted, str) or given["type"] != wanted["type"]:
        return False
    if wanted["type"] != "struct":
        return all(is_alike(given[part], wanted[part]) for part in _PARTS if part in wanted)
    there = fields_by_name(given)
    return all(is_alike(there[name]["type"], field["type"]) for name, field in fields_by_name(wanted).items() if name in there)


_FIELDS_DIFFER = "DELTA_UPDATE_SCHEMA_MISMATCH_EXPRESSION"


def evolved_schema(request: StageRequest, clauses: Sequence[MergeClause], table: Json, source: Json) -> Json:
    """Return the table's schema with what only the source has and clauses name, with all of it if one has ``*``.

    As in Delta: a column or field that a clause sets, to whatever, gets the type that it has in the source.

    :param source: schema of the source.
    :raises SchemaMismatchException: if columns of the same name have types that do not merge.
    """
    setting = [clause for clause in clauses if clause.action != DELETE and clause.kind != NOT_MATCHED_BY_SOURCE]
    if not any(clause.set is None for clause in setting):
        names = {name.lower() for clause in setting for name in clause.set or ()}
        source = named_fields(source, {parse_column_path(name) for name in names})
    if not request.merge_schema or not source["fields"]:
        return table
    # Only inserts need every NOT NULL column of the source.
    relaxed = {**table, "fields": [{**field, "nullable": True} for field in table["fields"]]}
    try:
        evolved = written_schema(
            source,
            relaxed,
            merge=True,
            table_name=request.table,
            version=request.read_version,
            partition_columns=request.partition_columns,
            rules=request.rules,
            implicit=True,
        )
    except SchemaMismatchException as error:
        raise request.error(
            SchemaMismatchException,
            f"MERGE into table {request.table}: the source's columns do not merge with the table's of the same name "
            f"(DELTA_FAILED_TO_MERGE_FIELDS). {error.message}",
        ) from error
    known = {field["name"]: field.get("nullable", True) for field in table["fields"]}
    fields = [{**field, "nullable": known.get(field["name"], True)} for field in evolved["fields"]]
    return mapped_schema({**evolved, "fields": fields}, request.rules, request.transaction_id)


def star_columns(request: StageRequest, clause: MergeClause, target: Json, source: Json) -> dict[str, Json]:
    """Return the columns of the source that ``*`` takes, by name in lower case.

    :param target: schema of the table afterwards.
    :raises SchemaMismatchException: if the source lacks a column, and the schema may not evolve.
    :raises IdentityInsertException: if an identity column would get a value.
    """
    computed = {name.lower() for name in (*request.rules.generated, *(rule.column for rule in request.rules.identities))}
    taken: dict[str, Json] = {}
    absent = []
    there = fields_by_name(source)
    for field in target["fields"]:
        folded = field["name"].lower()
        found = there.get(folded)
        if found is not None:
            _check_identity(request, clause, folded)
            taken[folded] = found
        elif folded not in computed and not request.merge_schema:
            absent.append(field["name"])
    if absent:
        raise request.error(
            SchemaMismatchException,
            f"MERGE into table {request.table}: {clause} * needs the columns {', '.join(absent)}, which the source lacks; it "
            f"has {', '.join(field['name'] for field in source['fields'])}. Add them, or name columns to set.",
        )
    return taken


def _check_identity(request: StageRequest, clause: MergeClause, folded: str) -> None:
    for rule in request.rules.identities:
        if rule.column.lower() == folded and (clause.action == UPDATE or not rule.explicit):
            raise request.error(
                IdentityInsertException,
                f"MERGE into table {request.table}: {clause} * would set the identity column {rule.column}. Drop "
                "it from the source, or name the columns to set.",
            )


def known_path(request: StageRequest, clause: MergeClause, name: str, target: Json, source: Json) -> Path:
    """Return the path of a column or field that a clause sets.

    :raises DeltaAnalysisException: if neither table nor source has it.
    """
    path = parse_column_path(name)
    if not has_field(target, path):
        known = ", ".join(field["name"] for field in source["fields"])
        raise refused_merge(
            request,
            f"{clause} sets {name!r}, which neither the table nor the source has (DELTA_MERGE_UNRESOLVED_EXPRESSION). "
            f"Only columns and fields of the source are added; it has {known}",
        )
    return path


def check_types(request: StageRequest, clause: MergeClause, values: Mapping[str, Any], target: Json) -> None:
    """Check that columns and fields can hold what is assigned to them.

    :param values: of :data:`Assigned`.
    :raises SchemaMismatchException: names each, what it takes and what it would get.
    """
    for path, given, field in assigned_values(dict(values), target):
        name, wanted = column_path_text(path), field["type"]
        if not is_alike(given, wanted):
            error, remedy = "DATATYPE_MISMATCH", MAKE_VARIANTS if wanted == VARIANT else "Cast it"
            what = f"is {type_name(given)}, and the table has {type_name(wanted)}"
        elif (absent := absent_fields(given, wanted, within=True)) and not request.merge_schema:
            error, remedy = _FIELDS_DIFFER, "Add them, or pass merge_schema=True"
            what = f"lacks the fields {', '.join(absent)}"
        elif more := absent_fields(wanted, given, within=True):
            error, remedy = (
                _FIELDS_DIFFER,
                "Leave them out, or take the source's column of that name and pass merge_schema=True",
            )
            what = f"has the fields {', '.join(more)}, which the table lacks"
        else:
            continue
        raise request.error(
            SchemaMismatchException,
            f"MERGE into table {request.table}: what {clause} sets {name} to {what} ({error}). {remedy}.",
        )


def check_source_names(request: StageRequest, source: Json) -> None:
    """Refuse a source with two columns of the same name.

    :raises SchemaMismatchException: if it has some.
    """
    names = [field["name"].lower() for field in source["fields"]]
    if twice := [name for name in names if names.count(name) > 1]:
        raise request.error(
            SchemaMismatchException,
            f"The source of the MERGE into {request.table} has the column {twice[0]} twice (names are "
            "case-insensitive). Select or rename its columns.",
        )


def several_matches(request: StageRequest, pairs: int, rows: int, condition: str) -> DeltaUnsupportedOperationException:
    """Return the error of a MERGE in which several source rows match one row of the table."""
    return request.error(
        DeltaUnsupportedOperationException,
        f"MERGE into table {request.table} version {request.read_version}: several source rows match one row of the "
        f"table ({pairs} matches of {rows} rows, ON {condition}), so it is ambiguous which to use "
        "(DELTA_MULTIPLE_SOURCE_ROW_MATCHING_TARGET_ROW_IN_MERGE). Make the source unique in the columns of the condition.",
    )


def refused_merge(request: StageRequest, what: str) -> DeltaAnalysisException:
    """Return the error of a MERGE that cannot be.

    :param what: the end of a sentence.
    """
    return request.error(DeltaAnalysisException, f"MERGE into table {request.table} version {request.read_version}: {what}")


def takes_any_match(clauses: Sequence[MergeClause]) -> bool:
    """Return whether it does not matter how many source rows match: nothing is done then, or the row is deleted.

    :param clauses: for rows that match.
    """
    return not clauses or (len(clauses) == 1 and clauses[0].action == DELETE and clauses[0].condition is None)
