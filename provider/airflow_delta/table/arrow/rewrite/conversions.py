"""Values in another type, as Spark stores them: structs field by field, casts that may fail with Spark's errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from airflow_delta.contract.merge_columns import absent_fields
from airflow_delta.contract.table_rules import refused_rows
from airflow_delta.exceptions import DeltaAnalysisException, SchemaMismatchException
from airflow_delta.log.schema.types import ArrayType, DataType, MapType, StructType, arrow_type, as_nullable, type_to_json
from airflow_delta.table.arrow.row_checks import needs_spark
from airflow_delta.table.expressions.problems import NotDecided
from airflow_delta.table.expressions.row_expression import row_expression

if TYPE_CHECKING:
    from airflow_delta.contract.request import StageRequest

Merged = Callable[[pa.Array, pa.Array], pa.Array]
Converted = Callable[[pa.Array], pa.Array]

_VALUE = "value"


class Conversions:
    """Makes the functions that bring values to other types.

    :param why: what of the operation needs it, for messages.
    """

    def __init__(self, request: StageRequest, why: str) -> None:
        self._request, self._why = request, why

    def between(self, given: DataType, target: DataType, path: str) -> Converted:
        """Return the function from one type to another; fields that only ``target`` has are null.

        :param path: of the column, for messages.
        :raises DeltaUnsupportedOperationException: if only Spark casts one to the other.
        """
        out = arrow_type(as_nullable(target))
        if given.name == "void":
            return lambda values: pa.nulls(len(values), out)
        if arrow_type(as_nullable(given)) == out:
            return lambda values: values
        match given, target:
            case StructType(), StructType():
                return self._struct(given, target, path)
            case ArrayType(element), ArrayType(wanted):
                inner = self.between(element, wanted, f"{path}[element]")
                return lambda values: _with_children(_compact(values), out, lambda found: [inner(found.values)])
            case MapType(), MapType():
                key = self.between(given.key_type, target.key_type, f"{path}[key]")
                value = self.between(given.value_type, target.value_type, f"{path}[value]")

                def entries(found: pa.Array) -> list[pa.Array]:
                    fields = [out.key_field, out.item_field]
                    return [pa.StructArray.from_arrays([key(found.keys), value(found.items)], fields=fields)]

                return lambda values: _with_children(_compact(values), out, entries)
        return self._cast(given, target, path)

    def merged(self, given: StructType, known: StructType, target: StructType, path: str) -> Merged:
        """Return the function from a struct of the source and one of the table to one with the table's values in other fields.

        If both are null, so is the result.
        """
        parts: list[Merged] = []
        for field in target:
            here = f"{path}.{field.name}"
            mine, theirs = _place(given, field.name), _place(known, field.name)
            if mine is None:
                parts.append(self._old(known, theirs, field.data_type, here))
                continue
            new = given.fields[mine].data_type
            old = None if theirs is None else known.fields[theirs].data_type
            if (
                theirs is not None
                and isinstance(new, StructType)
                and isinstance(old, StructType)
                and isinstance(field.data_type, StructType)
                and absent_fields(type_to_json(new), type_to_json(old))
            ):
                parts.append(_of_both(self.merged(new, old, field.data_type, here), mine, theirs))
            else:
                parts.append(_of_first(self.between(new, field.data_type, here), mine))
        out = list(arrow_type(as_nullable(target)))

        def merge(new: pa.Array, old: pa.Array) -> pa.Array:
            mask = pc.and_(new.is_null(), old.is_null())
            return pa.StructArray.from_arrays([part(new, old) for part in parts], fields=out, mask=mask)

        return merge

    def _old(self, known: StructType, place: int | None, target: DataType, path: str) -> Merged:
        if place is None:
            empty = arrow_type(as_nullable(target))
            return lambda new, _old: pa.nulls(len(new), empty)
        convert = self.between(known.fields[place].data_type, target, path)
        return lambda _new, old: convert(pc.struct_field(old, [place]))

    def _struct(self, given: StructType, target: StructType, path: str) -> Converted:
        out = list(arrow_type(as_nullable(target)))
        parts: list[Converted] = []
        for field, kind in zip(target, out, strict=True):
            place = _place(given, field.name)
            if place is None:
                parts.append(_nulls(kind.type))
            else:
                convert = self.between(given.fields[place].data_type, field.data_type, f"{path}.{field.name}")
                parts.append(_field_of(convert, place))

        def struct(values: pa.Array) -> pa.Array:
            return pa.StructArray.from_arrays([part(values) for part in parts], fields=out, mask=values.is_null())

        return struct

    def _cast(self, given: DataType, target: DataType, path: str) -> Converted:
        try:
            cast = row_expression(f"CAST({_VALUE} AS {target})", lambda _name: (_VALUE, (), given))
        except NotDecided as error:
            raise needs_spark(
                self._request, f"{self._why}, where {path} of type {given} becomes {target}, which only Spark casts ({error})"
            ) from error

        def values(found: pa.Array) -> pa.Array:
            try:
                return cast.values(pa.RecordBatch.from_arrays([found], names=[_VALUE]))
            except DeltaAnalysisException as error:
                raise misfit(self._request, path, given, target) from error

        return values


def misfit(request: StageRequest, path: str, given: DataType, target: DataType) -> SchemaMismatchException:
    """Return the error of a value that a column or field cannot hold."""
    return request.error(
        SchemaMismatchException,
        f"Column {path} holds a value of {given} that does not fit into {target}"
        f"{refused_rows(request.table, request.read_version)}",
    )


def _place(struct: StructType, name: str) -> int | None:
    folded = name.lower()
    return next((number for number, field in enumerate(struct) if field.name.lower() == folded), None)


def _field_of(convert: Converted, place: int) -> Converted:
    return lambda values: convert(pc.struct_field(values, [place]))


def _of_first(convert: Converted, place: int) -> Merged:
    return lambda new, _old: convert(pc.struct_field(new, [place]))


def _of_both(merge: Merged, mine: int, theirs: int) -> Merged:
    return lambda new, old: merge(pc.struct_field(new, [mine]), pc.struct_field(old, [theirs]))


def _nulls(kind: pa.DataType) -> Converted:
    return lambda values: pa.nulls(len(values), kind)


def _compact(values: pa.Array) -> pa.Array:
    """Return a copy: a slice has the elements of all rows, and those of other rows are not to be cast."""
    return pa.concat_arrays([values, values.slice(0, 0)]) if values.offset or len(values) else values


def _with_children(values: pa.Array, out: pa.DataType, children: Callable[[pa.Array], list[pa.Array]]) -> pa.Array:
    """Return a list or map with other elements in the same places."""
    return pa.Array.from_buffers(out, len(values), values.buffers()[:2], offset=values.offset, children=children(values))
