"""Checking the expressions of generated columns (Delta's ``GeneratedColumn.validateGeneratedColumns``).

Spark evaluates the expressions; this module checks what can be checked without it. An expression must give the same value
whenever a later writer evaluates it, so it may not depend on other rows or tables, on the time or on randomness.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import sqlglot
from sqlglot import TokenType, exp

from airflow_delta.exceptions import DeltaAnalysisException
from airflow_delta.log.expressions.functions import NOT_DETERMINISTIC, OF_THE_SESSION
from airflow_delta.log.expressions.refused import oversized
from airflow_delta.log.expressions.text import SqlSyntaxError, tree_of
from airflow_delta.log.schema.types import (
    PRIMITIVES,
    ArrayType,
    DataType,
    MapType,
    PrimitiveType,
    StructType,
    as_nullable,
    parse_type,
)


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Delta's SupportedGenerationExpressions, by their Spark SQL names.
_SUPPORTED = _names(
    """
    abs coalesce greatest if iff isnan ifnull isnull isnotnull least nanvl nullif nvl nvl2 when acos acosh asin asinh
    atan atan2 atanh bin bround cbrt ceil ceiling cos cosh conv degrees e exp expm1 floor factorial hex hypot log
    log10 log1p log2 ln mod negative pi pmod positive pow power radians rint round shiftleft shiftright
    shiftrightunsigned sign signum sin sinh str_to_map sqrt tan cot tanh div ascii char chr base64 bit_length
    char_length character_length concat_ws decode elt encode find_in_set format_number format_string get_json_object
    initcap instr lcase length levenshtein like lower octet_length locate lpad ltrim json_tuple parse_url position
    charindex printf regexp_extract regexp_replace regexp_like repeat replace overlay rlike rpad rtrim sentences
    soundex space split substr substring left right substring_index translate trim ucase unbase64 unhex upper xpath
    xpath_boolean xpath_double xpath_number xpath_float xpath_int xpath_long xpath_short xpath_string add_months
    datediff date_add date_diff dateadd date_format date_sub day dayofyear dayofmonth from_unixtime from_utc_timestamp
    hour last_day minute month months_between next_day quarter second timestampadd timestampdiff to_timestamp to_date
    to_unix_timestamp to_utc_timestamp trunc date_trunc unix_timestamp dayofweek weekday weekofyear year window
    make_date make_timestamp make_interval date_part datepart extract array array_contains arrays_overlap
    array_intersect array_join array_position array_sort array_except array_union map named_struct struct element_at
    map_from_arrays map_keys map_values map_entries map_from_entries map_concat size slice cardinality arrays_zip
    sort_array array_min array_max reverse concat flatten sequence array_repeat array_remove array_distinct
    assert_true crc32 md5 hash xxhash64 sha sha1 sha2 typeof bit_count to_json from_json schema_of_json from_csv
    schema_of_csv to_csv cast try_cast boolean tinyint smallint int bigint float double decimal date timestamp binary
    string
    """
)
_AGGREGATES = _names(
    """
    any any_value approx_count_distinct approx_percentile avg bit_and bit_or bit_xor bool_and bool_or collect_list
    collect_set corr count count_if covar_pop covar_samp every first first_value grouping grouping_id kurtosis last
    last_value max max_by mean median min min_by mode percentile percentile_approx regr_avgx regr_avgy regr_count
    skewness some std stddev stddev_pop stddev_samp sum try_avg try_sum var_pop var_samp variance
    """
)
_REFUSED = OF_THE_SESSION | _names(
    """
    version explode explode_outer posexplode posexplode_outer inline inline_outer stack row_number rank dense_rank
    percent_rank cume_dist ntile lag lead nth_value transform filter exists forall aggregate reduce transform_values
    transform_keys map_filter map_zip_with zip_with parse_json try_parse_json variant_get
    """
)
# Words that may precede a parenthesis without being a function.
_WORDS = _names(
    """
    and or not in between like rlike ilike is when then else case as distinct using on div interval
    """
)


def check_generation_expressions(schema: StructType, expressions: Mapping[str, str]) -> None:
    """Check the generation expressions of a schema.

    :param expressions: by column name.
    :raises DeltaAnalysisException: if an expression is not allowed, or its type is not the type of the column.
    """
    ordinary = StructType(tuple(f for f in schema.fields if f.name not in expressions))
    for name, text in expressions.items():
        column = schema.find(name)
        if column is not None and column.data_type.name == "variant":
            raise _refused(name, text, "a variant cannot be generated", "DELTA_UNSUPPORTED_DATA_TYPE_IN_GENERATED_COLUMN")
        tree = _parse(name, text)
        _check_shape(name, text, tree)
        _check_functions(name, text)
        _check_references(name, text, tree, ordinary)
        found = expression_type(tree, ordinary)
        if column is not None and found is not None and not _same_type(found, column.data_type):
            raise _refused(
                name,
                text,
                f"its type is {found}, but the type of the column is {column.data_type}; cast it",
                "DELTA_GENERATED_COLUMNS_EXPR_TYPE_MISMATCH",
            )


def _refused(name: str, text: str, why: str, error_class: str) -> DeltaAnalysisException:
    return DeltaAnalysisException(f"The expression {text!r} cannot generate column {name!r}: {why} ({error_class}).")


def _parse(name: str, text: str) -> Any:
    if (problem := oversized(text)) is not None:
        raise _refused(name, text[:100], f"it {problem}", "DELTA_UNSUPPORTED_EXPRESSION_GENERATED_COLUMN")
    try:
        return tree_of(text)
    except SqlSyntaxError as error:
        raise _refused(
            name, text, f"it is not valid Spark SQL ({error})", "DELTA_UNSUPPORTED_EXPRESSION_GENERATED_COLUMN"
        ) from error


def _check_shape(name: str, text: str, tree: Any) -> None:
    for kinds, what in (
        ((exp.Query, exp.Subquery, exp.Exists), "it contains a subquery"),
        ((exp.Window,), "it contains a window function"),
        ((exp.Lambda,), "it contains a lambda function"),
        ((exp.CurrentDate, exp.CurrentTimestamp, exp.CurrentUser), "it depends on who evaluates it, and when"),
        ((exp.Star,), "it refers to all columns"),
    ):
        if tree.find(*kinds) is not None:
            raise _refused(name, text, what, "DELTA_UNSUPPORTED_EXPRESSION_GENERATED_COLUMN")


def functions(text: str) -> Iterator[str]:
    """Yield the names of the functions that an expression calls, in lower case."""
    tokens = sqlglot.tokenize(text, read="spark")
    for before, token, following in zip([None, *tokens], tokens, tokens[1:], strict=False):
        called = following.token_type == TokenType.L_PAREN and token.text[:1].isidentifier()
        if called and token.token_type not in (TokenType.STRING, TokenType.IDENTIFIER):
            if before is not None and before.token_type == TokenType.DOT:
                yield "." + token.text.lower()  # qualified, so not a built-in function
            elif token.text.lower() not in _WORDS:
                yield token.text.lower()


def _check_functions(name: str, text: str) -> None:
    for function in functions(text):
        if function in NOT_DETERMINISTIC:
            why, error = f"{function} is not deterministic", "DELTA_NON_DETERMINISTIC_EXPRESSION_IN_GENERATED_COLUMN"
        elif function in _AGGREGATES:
            why, error = f"{function} is an aggregate function", "DELTA_AGGREGATE_IN_GENERATED_COLUMN"
        elif function in _REFUSED:
            why, error = f"{function} is not allowed", "DELTA_UNSUPPORTED_EXPRESSION_GENERATED_COLUMN"
        elif function not in _SUPPORTED:
            why, error = (
                f"{function.lstrip('.')} is not one of the allowed Spark functions",
                "DELTA_UDF_IN_GENERATED_COLUMN",
            )
        else:
            continue
        raise _refused(name, text, why, error)


def references(tree: Any) -> Iterator[tuple[str, ...]]:
    """Yield the column paths that a parsed expression refers to, as written."""
    for column in tree.find_all(exp.Column):
        path = [part.name for part in column.parts]
        above = column.parent
        while isinstance(above, exp.Dot) and isinstance(above.expression, exp.Identifier):
            path.append(above.expression.name)
            above = above.parent
        yield tuple(path)


def _check_references(name: str, text: str, tree: Any, ordinary: StructType) -> None:
    for path in references(tree):
        if _resolve(path, ordinary) is None and not _resolves_loosely(path, ordinary):
            raise _refused(
                name,
                text,
                f"{'.'.join(path)} is not a column of the table, or is generated itself; it may use {', '.join(ordinary.names)}",
                "DELTA_INVALID_GENERATED_COLUMN_REFERENCES",
            )


def _resolve(path: tuple[str, ...], schema: StructType) -> DataType | None:
    at: DataType = schema
    for part in path:
        field = at.find(part) if isinstance(at, StructType) else None
        if field is None:
            return None
        at = field.data_type
    return at


def _resolves_loosely(path: tuple[str, ...], schema: StructType) -> bool:
    """Return whether a path goes through lists or maps, whose elements can be named in Spark too."""
    for end in range(len(path) - 1, 0, -1):
        found = _resolve(path[:end], schema)
        if found is not None:
            return isinstance(found, ArrayType | MapType)
    return False


# -- types --------------------------------------------------------------------------------------------------------------------

_NUMBERS = ("byte", "short", "integer", "long", "float", "double")
_TEXT = _names(
    """
    upper lower ucase lcase concat_ws trim ltrim rtrim initcap date_format md5 sha sha1 sha2 hex
    """
)
_TEXT_OR_BINARY = _names("substring lpad rpad")  # binary arguments give binary results
_WHOLE = _names(
    """
    year month day dayofmonth dayofweek dayofyear weekofyear quarter hour minute second length char_length datediff
    """
)
_DATES = _names(
    """
    to_date date last_day date_add date_sub make_date add_months next_day trunc
    """
)


def expression_type(node: Any, schema: StructType) -> DataType | None:
    """Return the type of a parsed expression over the columns of a schema, ``None`` if only Spark knows it.

    :param node: node of ``sqlglot``.
    """
    match node:
        case exp.Paren() | exp.Neg():
            return expression_type(node.this, schema)
        case exp.Column() | exp.Dot():
            paths = list(references(node))
            return _resolve(paths[0], schema) if len(paths) == 1 else None
        case exp.Cast():  # covers TRY_CAST
            return _sql_type(node.to.sql(dialect="spark"))
        case exp.Boolean() | exp.Predicate() | exp.Connector() | exp.Not():
            return _named("boolean")
        case exp.Literal():
            return _literal_type(node)
        case exp.Add() | exp.Sub() | exp.Mul():
            return _arithmetic(expression_type(node.this, schema), expression_type(node.expression, schema))
        case exp.Div():
            both = (expression_type(node.this, schema), expression_type(node.expression, schema))
            return _named("double") if all(side is not None and side.name in _NUMBERS for side in both) else None
        case exp.If() | exp.Case() | exp.Coalesce():
            return _common([expression_type(value, schema) for value in _values(node)])
    return _function_type(node, schema)


def _values(node: Any) -> list[Any]:
    if isinstance(node, exp.Coalesce):
        return [node.this, *node.expressions]
    branches = [node] if isinstance(node, exp.If) else node.args.get("ifs") or []
    other = node.args.get("default") if isinstance(node, exp.Case) else node.args.get("false")
    return [*(branch.args.get("true") for branch in branches), *([other] if other is not None else [])]


def _common(types: list[DataType | None]) -> DataType | None:
    first = types[0] if types else None
    return first if first is not None and all(t == first for t in types) else None


def _literal_type(node: Any) -> DataType | None:
    if node.is_string:
        return _named("string")
    if node.this.isdecimal():
        value = int(node.this)
        return _named("integer") if value < 2**31 else _named("long") if value < 2**63 else None
    return None


def _arithmetic(left: DataType | None, right: DataType | None) -> DataType | None:
    if left is None or right is None or left.name not in _NUMBERS or right.name not in _NUMBERS:
        return None
    wider = _NUMBERS[max(_NUMBERS.index(left.name), _NUMBERS.index(right.name))]
    if wider == "float" and "long" in (left.name, right.name):
        return None
    return _named(wider)


def _function_type(node: Any, schema: StructType) -> DataType | None:
    if not isinstance(node, exp.Func) or isinstance(node, exp.TimestampAdd):  # its SQL says DATE_ADD as well
        return None
    called = next(functions(node.sql(dialect="spark")), "")
    if called in _TEXT_OR_BINARY:
        given = expression_type(node.this, schema)
        return None if given is None or given.name == "binary" else _named("string")
    if called in _TEXT:
        return _named("string")
    if called in _WHOLE:
        return _named("integer")
    if called in _DATES:
        return _named("date")
    return _named("timestamp") if called in ("date_trunc", "to_timestamp", "make_timestamp") else None


_SQL_TYPES = {"tinyint": "byte", "smallint": "short", "int": "integer", "bigint": "long", "real": "float"}


def _sql_type(sql: str) -> DataType | None:
    text = sql.lower().replace(" ", "")
    name = _SQL_TYPES.get(text, text)
    return parse_type(name) if name in PRIMITIVES or name.startswith("decimal(") else None


def _named(name: str) -> DataType:
    return PrimitiveType(name)


def _same_type(found: DataType, column: DataType) -> bool:
    return as_nullable(found) == as_nullable(column)
