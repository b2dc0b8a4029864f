"""Random statements on random tables: DELETE, UPDATE, MERGE, OPTIMIZE, REORG, and appends between them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from airflow_delta.contract.merge import (
    when_matched_delete,
    when_matched_update,
    when_not_matched_by_source_delete,
    when_not_matched_by_source_update,
    when_not_matched_insert,
)
from airflow_delta.table.operations.merge.plan import plan_merge
from airflow_delta.table.operations.optimize.plan import plan_optimize
from airflow_delta.table.operations.optimize.reorg import plan_reorg
from airflow_delta.table.operations.rewrite.delete import plan_delete
from airflow_delta.table.operations.rewrite.update import plan_update
from support.random_expressions import FORMS, ExpressionDraw
from support.random_tables import KEY, KINDS, Kind, RandomTable, leaves_of, quoted


class Statement(NamedTuple):
    """A statement: what plans it, and with what; an append has no plan."""

    plan: Callable[..., Any] | None
    arguments: dict[str, Any]

    def __str__(self) -> str:
        name = "append" if self.plan is None else self.plan.__name__.removeprefix("plan_")
        return f"{name} { ({key: value for key, value in self.arguments.items() if key not in ('source', 'rows')}) }"


def statement(table: RandomTable) -> Statement:
    """Return the next statement on a table."""
    draw = table.draw
    number = draw.random()
    if number < 0.2:
        return Statement(plan_delete, {"predicate": _condition(draw, leaves_of(table.all_columns))})
    if number < 0.45:
        predicate = None if draw.random() < 0.1 else _condition(draw, leaves_of(table.all_columns))
        return Statement(
            plan_update, {"set": _set(draw, table.all_columns, leaves_of(table.all_columns)), "predicate": predicate}
        )
    if number < 0.82:
        return Statement(plan_merge, _merge(table))
    if number < 0.9:
        return Statement(plan_optimize, {})
    if number < 0.95:
        return Statement(plan_reorg, {})
    return Statement(None, {"rows": table.rows(draw.choice([1, 20]))})


def _condition(draw: random.Random, leaves: Mapping[str, list[str]]) -> str:
    if draw.random() < 0.25:
        return ExpressionDraw(draw, leaves).expression("truth", draw.choice([1, 1, 1, 2]))
    comparison = _comparison(draw, leaves)
    if draw.random() < 0.2:
        comparison = f"NOT ({comparison})"
    return comparison if draw.random() < 0.6 else f"({comparison}) {draw.choice(['AND', 'OR'])} ({_condition(draw, leaves)})"


def _comparison(draw: random.Random, leaves: Mapping[str, list[str]]) -> str:
    """Return a simple condition: most columns have some rows for which it is true."""
    family = draw.choice([family for family in leaves if family not in ("small", "map")])
    left, right = draw.choice(leaves[family]), draw.choice(leaves[family])
    if family in ("list", "struct") or draw.random() < 0.15:
        return f"{left} IS {draw.choice(['', 'NOT '])}NULL"
    if draw.random() < 0.4:
        left, right = quoted(KEY) if quoted(KEY) in leaves["whole"] else left, str(draw.randint(0, 150))
        if left != quoted(KEY):
            left, right = draw.choice(leaves["whole"]), "1"
    return f"{left} {draw.choice(['=', '<', '>=', '<>', '<=>', '=', '>'])} {right}"


def _set(draw: random.Random, columns: Mapping[str, Kind], leaves: Mapping[str, list[str]]) -> dict[str, str]:
    chosen = draw.sample(list(columns), min(len(columns), draw.choice([1, 1, 2, 3])))
    found: dict[str, str] = {}
    for name in chosen:
        if name == "made":  # only Spark sets generated columns
            continue
        kind = columns[name]
        if kind.family == "struct" and draw.random() < 0.5:
            inner = [name, "s"] if "d.1" in kind.sql else [name]
            found[quoted(*inner, "x")] = ExpressionDraw(draw, leaves).expression("whole", 1)
        else:
            found[quoted(name)] = _value(draw, kind, leaves)
    return found or {quoted(KEY): f"{leaves['whole'][-1]}"}


def _value(draw: random.Random, kind: Kind, leaves: Mapping[str, list[str]]) -> str:
    """Return an expression of a type that is stored in a column of a kind, or nearly."""
    if draw.random() < 0.15:
        return "NULL"
    family = kind.family
    if family not in FORMS:
        texts = [text for text in leaves[family] if text != "NULL"]
        return draw.choice(texts) if texts and draw.random() < 0.8 else "NULL"
    if draw.random() < 0.1:
        family = draw.choice(list(FORMS))
    text = ExpressionDraw(draw, leaves).expression(family, draw.choice([0, 0, 1, 1, 2]))
    return f"try_cast({text} AS {kind.sql})" if draw.random() < 0.3 else text


def _merge(table: RandomTable) -> dict[str, Any]:
    draw = table.draw
    source = _source(table)
    columns = table.all_columns
    of_source = {name: kind for name, kind in columns.items() if name in source.column_names}
    both = leaves_of(columns, "target")
    for family, texts in leaves_of(of_source, "source").items():
        both[family] = [*both[family], *texts]
    clauses = _clauses(table, source, both)
    condition = f"target.{KEY} = source.{KEY}" if draw.random() < 0.8 else f"source.{KEY} <=> target.{KEY}"
    others = [
        column for column in table.columns if column.name in of_source and column.latest.family in ("string", "date", "whole")
    ]
    if others and draw.random() < 0.25:
        name = draw.choice(others).name
        condition += f" AND {quoted('target', name)} {draw.choice(['=', '<=>'])} {quoted('source', name)}"
    if draw.random() < 0.25:
        condition += f" AND ({_comparison(draw, both)})"
    merge_schema = "extra" in source.column_names or draw.random() < 0.1
    return {"condition": condition, "clauses": clauses, "source": source, "merge_schema": merge_schema}


def _source(table: RandomTable) -> pa.Table:
    """Return source rows: some have keys of the table; now and then a key comes twice, columns are absent or of another type."""
    draw = table.draw
    count = draw.choice([0, 1, 10, 30])
    ids: list[int | None] = list(draw.sample(range(table.last_id + count + 10), count))
    if count and draw.random() < 0.1:
        ids[-1] = ids[0]
    if count and draw.random() < 0.1:
        ids[0] = None
    rows = table.rows(count, ids=ids)
    if draw.random() < 0.25:
        rows = rows.drop_columns(draw.sample(rows.column_names[1:], draw.randint(0, 2)))
    if draw.random() < 0.2:
        rows = rows.set_column(0, KEY, rows.column(KEY).cast(draw.choice([pa.int32(), pa.int16()])))
    if draw.random() < 0.15:
        kind = draw.choice(KINDS)
        values = pa.array([draw.choice([None, *kind.values]) for _ in range(count)], kind.arrow)
        rows = rows.append_column(draw.choice(["extra", "Extra.2"] if table.mode == "none" else ["extra", "ex tra"]), values)
    if "given" in table.computed and draw.random() < 0.3:
        rows = rows.append_column("given", pa.array(["g"] * count, pa.string()))
    return rows


def _clauses(table: RandomTable, source: pa.Table, both: Mapping[str, list[str]]) -> list[dict[str, Any]]:
    draw, columns = table.draw, table.all_columns
    of_target = leaves_of(columns)
    of_source = leaves_of({name: kind for name, kind in columns.items() if name in source.column_names}, "source")
    assignable = {name: kind for name, kind in columns.items() if name not in ("made", "number")}
    found: list[dict[str, Any]] = []

    def add(make: list[Callable[[str | None], dict[str, Any]]], leaves: Mapping[str, list[str]], most: int) -> None:
        count = draw.randint(0, most)
        for number in range(count):
            last = number == count - 1
            condition = None if last and draw.random() < 0.6 else _condition(draw, leaves)
            found.append(draw.choice(make)(condition))

    def inserted() -> dict[str, str]:
        chosen = draw.sample(list(assignable), draw.randint(1, len(assignable)))
        return {quoted(name): _value(draw, columns[name], of_source) for name in {KEY: 0, **dict.fromkeys(chosen)}}

    add(
        [
            lambda condition: when_matched_update(None, condition),
            lambda condition: when_matched_update(_set(draw, assignable, both), condition),
            lambda condition: when_matched_delete(condition),
        ],
        both,
        2,
    )
    add(
        [
            lambda condition: when_not_matched_insert(None, condition),
            lambda condition: when_not_matched_insert(inserted(), condition),
        ],
        of_source,
        2,
    )
    if draw.random() < 0.3:
        add(
            [
                lambda condition: when_not_matched_by_source_delete(condition),
                lambda condition: when_not_matched_by_source_update(_set(draw, assignable, of_target), condition),
            ],
            of_target,
            2,
        )
    return found or [when_matched_update(), when_not_matched_insert()]
