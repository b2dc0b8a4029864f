"""Whether a DataFrame fits a table, compared on Spark's JSON form of schemas, so that it can run anywhere.

Columns match by name, ignoring case. A different type is cast if no value can be lost; UPDATE and MERGE follow SQL's store
assignment (Spark's ANSI policy), as in Delta. New columns need ``mergeSchema`` (Delta's ``ImplicitMetadataOperation``). The
worker checks the result again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from airflow_delta.contract.casts import DECIMAL, DIGITS, WIDENS, cast_of
from airflow_delta.contract.delta_names import COLLATIONS
from airflow_delta.contract.table_rules import TableRules
from airflow_delta.exceptions import (
    InvariantViolationException,
    SchemaMismatchException,
)
from airflow_delta.lazy_patterns import lazy_pattern

if TYPE_CHECKING:
    from airflow_delta.contract.payloads import Json

Type = Any
"""A type in Spark's JSON form: a name, or an object with ``type``."""

_ATOMIC = {"string", "boolean", "binary", "date", "timestamp", "timestamp_ntz", "float", "double", *DIGITS}
_INVALID_NAME = lazy_pattern(r"[ ,;{}()\n\t=]")
# SQL's store assignment, also where digits of a number are lost.
_WIDER = {
    "byte": {"short", "integer", "long", "float", "double"},
    "short": {"integer", "long", "float", "double"},
    "integer": {"long", "float", "double"},
    "long": {"float", "double"},
    "float": {"double"},
    "date": {"timestamp", "timestamp_ntz"},
}
_TIMES = {"date", "timestamp", "timestamp_ntz"}
VARIANT = "variant"
"""The type of values of any kind. They cannot be compared, so such a column is never a key."""
MAKE_VARIANTS = (
    "Spark makes variants: parse_json(column) of JSON text, to_variant_object(column) of a struct, array or map, "
    "CAST(column AS VARIANT) of any other value"
)
TYPED_VALUE = "typed_value"
"""The field of a variant's group that only a shredded variant has."""
WRITE_WHOLE = (
    "Have the job that writes the file set spark.sql.variant.writeShredding.enabled to false: from Spark 4.1 on, it shreds "
    "variants by default, which Delta tables allow only with delta.enableVariantShredding, which this provider does not write."
)


WIDEN = "widen"
"""A cast that cannot fail."""
CHECKED = "checked"
"""A cast that fails for values that the target cannot hold."""


def fields(struct: Json) -> list[Json]:
    """Return the fields of a struct in JSON form."""
    return list(struct["fields"])


def find_field(struct: Json, name: str) -> Json | None:
    """Return the field of that name, ignoring case. For each of many names, use :func:`fields_by_name`."""
    folded = name.lower()
    return next((f for f in struct["fields"] if f["name"].lower() == folded), None)


def fields_by_name(struct: Json) -> dict[str, Json]:
    """Return the fields by name in lower case; of several with one name, the first."""
    return {f["name"].lower(): f for f in reversed(struct["fields"])}


def type_name(data_type: Type) -> str:
    """Return a type as SQL spells it, for messages."""
    if isinstance(data_type, str):
        return {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}.get(data_type, data_type)
    match data_type["type"]:
        case "struct":
            return "struct<" + ",".join(f"{f['name']}:{type_name(f['type'])}" for f in data_type["fields"]) + ">"
        case "array":
            return f"array<{type_name(data_type['elementType'])}>"
        case "map":
            return f"map<{type_name(data_type['keyType'])},{type_name(data_type['valueType'])}>"
        case _:
            return str(data_type["type"])


def nullable(data_type: Type) -> Type:
    """Return a type with all of its parts nullable, as Delta stores the schema of data."""
    if isinstance(data_type, str):
        return data_type
    match data_type["type"]:
        case "struct":
            return {
                "type": "struct",
                "fields": [
                    {"name": f["name"], "type": nullable(f["type"]), "nullable": True, "metadata": _own_metadata(f)}
                    for f in data_type["fields"]
                ],
            }
        case "array":
            return {"type": "array", "elementType": nullable(data_type["elementType"]), "containsNull": True}
        case "map":
            return {
                "type": "map",
                "keyType": nullable(data_type["keyType"]),
                "valueType": nullable(data_type["valueType"]),
                "valueContainsNull": True,
            }
        case _:
            return data_type


def _own_metadata(field: Json) -> Json:
    return {k: v for k, v in (field.get("metadata") or {}).items() if not k.startswith(("delta.", "__"))}


def without_void(data_type: Type, table: str, path: str = "") -> Type:
    """Return a type as in files, which hold nothing of the type ``void``: readers make nulls of a column that a file lacks.

    :param table: for the message.
    :raises SchemaMismatchException: if only the file could say how many there are: elements, keys and values, or structs without
        another field.
    """
    if isinstance(data_type, str):
        return data_type
    if data_type["type"] == "struct":
        kept = [f for f in data_type["fields"] if f["type"] != "void"]
        if kept or not data_type["fields"]:
            below = [f"{path}.{f['name']}" if path else f["name"] for f in kept]
            types = [without_void(f["type"], table, here) for f, here in zip(kept, below, strict=True)]
            return {**data_type, "fields": [{**f, "type": kind} for f, kind in zip(kept, types, strict=True)]}
    parts = {part: data_type[part] for part in ("elementType", "keyType", "valueType") if part in data_type}
    if data_type["type"] == "struct" or "void" in parts.values():
        raise SchemaMismatchException(
            f"{f'Column {path}' if path else 'The schema'} of table {table} has the type {type_name(data_type)}, of which no "
            "file can hold the values (DELTA_COMPLEX_TYPE_COLUMN_CONTAINS_NULL_TYPE). Write typed values with merge_schema=True, "
            "or drop the column. Nothing was written.",
            table=table,
        )
    return {
        **data_type,
        **{name: without_void(kind, table, f"{path}[{name.removesuffix('Type')}]") for name, kind in parts.items()},
    }


def same_type(one: Type, other: Type) -> bool:
    """Return whether two types differ only in nullability and metadata; names are case-sensitive."""
    if isinstance(one, str) or isinstance(other, str):
        return bool(one == other)
    if one["type"] != other["type"]:
        return False
    match one["type"]:
        case "struct":
            mine, theirs = one["fields"], other["fields"]
            return len(mine) == len(theirs) and all(
                a["name"] == b["name"] and same_type(a["type"], b["type"]) for a, b in zip(mine, theirs, strict=True)
            )
        case "array":
            return same_type(one["elementType"], other["elementType"])
        case "map":
            return same_type(one["keyType"], other["keyType"]) and same_type(one["valueType"], other["valueType"])
        case _:
            return bool(one == other)


def store_assignment(given: str, target: str) -> str | None:
    """Return how a value of one atomic type is stored as another: ``widen``, ``checked``, or ``None`` if it may not be."""
    if given in ("void", target) or target in _WIDER.get(given, ()):
        return WIDEN
    if target == "string":
        return WIDEN if given != "binary" and (given in _ATOMIC or DECIMAL.fullmatch(given)) else None
    if _digits(given) is not None and _digits(target) is not None:
        return _between_numbers(given, target)
    return CHECKED if given in _TIMES and target in _TIMES else None


def casts_variants(given: Type, target: Type) -> bool:
    """Return whether Spark casts values to variants, or variants to a type; not whether each variant has such a value."""
    if target != VARIANT:
        return given == VARIANT and _holds_json(target)
    while not isinstance(given, str) and given["type"] == "array":
        given = given["elementType"]
    return isinstance(given, str) and _is_atomic(given)


def _holds_json(data_type: Type) -> bool:
    if isinstance(data_type, str):
        return _is_atomic(data_type)
    if data_type["type"] == "map" and data_type["keyType"] != "string":
        return False
    parts = [data_type[part] for part in ("elementType", "keyType", "valueType") if part in data_type]
    return all(map(_holds_json, [*parts, *(field["type"] for field in data_type.get("fields", ()))]))


def _is_atomic(name: str) -> bool:
    return name in _ATOMIC or name == VARIANT or DECIMAL.fullmatch(name) is not None


def casts_implicitly(given: str, target: str) -> bool:
    """Return whether Spark casts one atomic type to another where a function takes the other (``TypeCoercion``)."""
    if not all(map(_is_atomic, (given, target))):
        return False
    if given == "string" and target not in ("boolean", VARIANT):
        return True
    return target == "string" or store_assignment(given, target) is not None


def keeps_values(given: str, target: str) -> bool:
    """Return whether every value of one atomic type can be stored as another, see :mod:`airflow_delta.contract.sql_types`."""
    return cast_of(given, target) is not None


def may_widen(table: str, data: str) -> bool:
    """Return whether ``mergeSchema`` may change a column's type to the wider one of the data (Delta's ``TypeWidening``)."""
    return cast_of(table, data) == WIDENS


def _between_numbers(given: str, target: str) -> str:
    one, other = _digits(given), _digits(target)
    if one is None or other is None or "float" in (given, target) or "double" in (given, target):
        return CHECKED
    fits = other[0] - other[1] >= one[0] - one[1] and other[1] >= one[1]
    return WIDEN if fits and target not in DIGITS else CHECKED


def _digits(name: str) -> tuple[int, int] | None:
    """Return precision and scale of a number's type; floating types have none that matters."""
    if match := DECIMAL.fullmatch(name):
        return int(match[1]), int(match[2])
    if name in DIGITS:
        return DIGITS[name], 0
    return (0, 0) if name in ("float", "double") else None


def written_schema(
    data: Json,
    table: Json | None,
    *,
    merge: bool,
    table_name: str,
    version: int,
    partition_columns: Sequence[str] = (),
    rules: TableRules | None = None,
    exact: bool = False,
    implicit: bool = False,
) -> Json:
    """Return the schema to write a DataFrame with: the table's columns in order, then new ones.

    :param data: schema of the DataFrame.
    :param table: schema of the table, ``None`` if the data decide (a new table, ``overwriteSchema``).
    :param merge: new columns are allowed.
    :param rules: rules of the table's features for rows.
    :param exact: make no cast that may lose a value.
    :param implicit: make Spark's implicit casts, at every depth; the caller checks each value.
    :raises SchemaMismatchException: naming each column, what was expected and what was given.
    :raises InvariantViolationException: if a NOT NULL column is not in the DataFrame.
    """
    rules = TableRules() if rules is None else rules
    where = f"table {table_name}" + (f" version {version}" if version >= 0 else "")
    widen = merge and rules.type_widening
    merging = _Merging(merge, widen, any_name=rules.column_mapping != "none", exact=exact, implicit=implicit)
    problems = merging.problems
    problems += _duplicates(data, "")
    if table is None:
        result: Json = nullable(data)
        problems += [*_collated(data, ""), *merging.new_columns(result, "")]
    else:
        result = merging.struct(data, table, "")
        given, computed = fields_by_name(data), rules.computed_names
        missing = [
            f["name"]
            for f in fields(table)
            if not f.get("nullable", True) and f["name"].lower() not in given and f["name"].lower() not in computed
        ]
        if missing and not problems:
            raise InvariantViolationException(
                f"The data to write to {where} lacks the NOT NULL column {', '.join(missing)}. Add it to the rows.",
                table=table_name,
                version=version,
            )
    problems += _partitioning(result, partition_columns)
    if problems:
        hint = ""
        if any("is not in the table" in p for p in problems):
            hint = " Set merge_schema=True to add new columns, or select the table's columns."
        if merging.casts:
            lost = "Values could be lost: cast" if merging.lossy else "Cast"
            hint += f" {lost} the column (CAST({merging.casts[0]}) in SQL), or overwrite with overwrite_schema=True."
            if merging.widens:
                hint += " merge_schema=True widens the column in an existing table with delta.enableTypeWidening=true."
        if merging.types_void:
            hint += " merge_schema=True gives a column of the type void the type of the data."
        if merging.makes_variants:
            hint += f" {MAKE_VARIANTS}."
        raise SchemaMismatchException(
            f"The data to write does not fit {where}: {'; '.join(problems)}.{hint} Nothing was written.",
            table=table_name,
            version=version,
        )
    return result


class _Merging:
    """Merges the columns of data and table, and collects the problems."""

    def __init__(self, merge: bool, widen: bool, *, any_name: bool, exact: bool, implicit: bool) -> None:
        self.merge = merge
        self.widen = widen
        self.any_name = any_name
        self.exact = exact
        self.implicit = implicit
        self.casts: list[str] = []
        self.lossy = False
        self.widens = False
        self.makes_variants = False
        self.types_void = False
        self.problems: list[str] = []

    def struct(self, data: Json, table: Json, prefix: str) -> Json:
        merged, there, known = [], fields_by_name(data), fields_by_name(table)
        for f in table["fields"]:
            given = there.get(f["name"].lower())
            if given is not None and f["type"] == "void":
                self.problems += _collated({"fields": [given]}, prefix)
            merged.append(f if given is None else {**f, "type": self.type(given["type"], f["type"], prefix + f["name"])})
        for f in data["fields"]:
            if f["name"].lower() in known:
                continue
            if not self.merge:
                self.problems.append(f"column {prefix + f['name']} ({type_name(f['type'])}) is not in the table")
                continue
            new = {"name": f["name"], "type": nullable(f["type"]), "nullable": True, "metadata": _own_metadata(f)}
            self.problems += [*_collated({"fields": [f]}, prefix), *self.new_columns({"fields": [new]}, prefix)]
            merged.append(new)
        return {"type": "struct", "fields": merged}

    def type(self, given: Type, target: Type, path: str) -> Type:
        kind = target if isinstance(target, str) else target["type"]
        if given == "void":
            return target
        if target == "void" and self.merge:  # the type of the first values
            self.problems += self._unsupported(given, path)
            return nullable(given)
        if isinstance(given, str) and isinstance(target, str):
            return self._atomic(given, target, path)
        if isinstance(given, str) or isinstance(target, str) or given["type"] != kind:
            self._mismatch(given, target, path)
            return target
        match kind:
            case "struct":
                return self.struct(given, target, f"{path}.")
            case "array":
                return {**target, "elementType": self.type(given["elementType"], target["elementType"], f"{path}[element]")}
            case "map":
                key = self.type(given["keyType"], target["keyType"], f"{path}[key]")
                value = self.type(given["valueType"], target["valueType"], f"{path}[value]")
                return {**target, "keyType": key, "valueType": value}
        if given != target:
            self._mismatch(given, target, path)
        return target

    def _atomic(self, given: str, target: str, path: str) -> str:
        if self.widen and may_widen(target, given):
            return given
        if self.implicit and casts_implicitly(given, target):
            return target
        how = store_assignment(given, target)
        if self.exact and how is not None and not keeps_values(given, target):
            self.lossy = True
            self.widens = self.widens or may_widen(target, given)
            how = None
        # Inside a struct, array or map, a failed cast cannot be distinguished from a null, so only safe ones are made.
        if how is None or (how == CHECKED and ("." in path or "[" in path)):
            self._mismatch(given, target, path)
        return target

    def new_columns(self, struct: Json, prefix: str) -> list[str]:
        problems = []
        for f in struct["fields"]:
            path = prefix + f["name"]
            if not self.any_name and _INVALID_NAME.search(f["name"]):
                problems.append(f"column {path!r} has one of the characters ' ,;{{}}()\\n\\t=' in its name, rename it")
            problems += self._unsupported(f["type"], path)
        return problems

    def _mismatch(self, given: Type, target: Type, path: str) -> None:
        if target == VARIANT:
            self.makes_variants = True
        elif target == "void":
            self.types_void = True
        elif isinstance(given, str) and isinstance(target, str):
            self.casts.append(f"{path} AS {type_name(target).upper()}")
        self.problems.append(f"column {path}: expected {type_name(target)}, got {type_name(given)}")

    def _unsupported(self, data_type: Type, path: str) -> list[str]:
        if isinstance(data_type, str):
            if data_type == "void":
                return [f"column {path} holds only untyped nulls (void), cast it to a type"]
            if not _is_atomic(data_type):
                return [f"column {path} has the type {data_type}, which the table cannot store"]
            return []
        match data_type["type"]:
            case "struct":
                return self.new_columns(data_type, f"{path}.")
            case "array":
                return self._unsupported(data_type["elementType"], f"{path}[element]")
            case "map":
                keys = self._unsupported(data_type["keyType"], f"{path}[key]")
                return keys + self._unsupported(data_type["valueType"], f"{path}[value]")
        return [f"column {path} has the type {type_name(data_type)}, which the table cannot store"]


def _duplicates(struct: Json, prefix: str) -> Iterator[str]:
    seen: set[str] = set()
    for f in struct["fields"]:
        name = f["name"].lower()
        if name in seen:
            yield f"column {prefix}{f['name']} occurs twice (names are case-insensitive)"
        seen.add(name)
        if not isinstance(f["type"], str) and f["type"]["type"] == "struct":
            yield from _duplicates(f["type"], f"{prefix}{f['name']}.")


def _collated(data_type: Type, prefix: str) -> Iterator[str]:
    """Yield the columns with a collation, which Spark keeps in the metadata of the nearest field."""
    if isinstance(data_type, str):
        return
    for f in data_type.get("fields", ()):
        if names := (f.get("metadata") or {}).get(COLLATIONS):
            collations = ", ".join(sorted(set(names.values())))
            yield f"column {prefix + f['name']} has the collation {collations}, which the table cannot store, cast it to STRING"
        yield from _collated(f["type"], f"{prefix}{f['name']}.")
    for part in ("elementType", "keyType", "valueType"):
        if part in data_type:
            yield from _collated(data_type[part], f"{prefix.removesuffix('.')}[{part.removesuffix('Type')}].")


def _partitioning(struct: Json, partition_columns: Sequence[str]) -> list[str]:
    problems = []
    for name in partition_columns:
        field = find_field(struct, name)
        if field is None:
            problems.append(f"partition column {name} is missing; the columns are {', '.join(f['name'] for f in fields(struct))}")
        elif not isinstance(field["type"], str) or field["type"] == VARIANT:
            problems.append(f"column {name} has the type {type_name(field['type'])}, which cannot partition a table")
    if partition_columns and len(partition_columns) >= len(fields(struct)):
        problems.append("all columns are partition columns, at least one other is needed")
    return problems


def variant_columns(struct: Json) -> list[str]:
    """Return the names of the columns that are, or hold, a variant."""

    def holds(data_type: Type) -> bool:
        if isinstance(data_type, str):
            return data_type == VARIANT
        parts = [data_type[part] for part in ("elementType", "keyType", "valueType") if part in data_type]
        return any(map(holds, [*parts, *(f["type"] for f in data_type.get("fields", ()))]))

    return [f["name"] for f in struct["fields"] if holds(f["type"])]
