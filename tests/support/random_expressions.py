"""Random well-typed expressions of Spark SQL."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

NUMBERS = ("whole", "floating", "decimal")
FORMS = {
    "whole": [
        "({whole} + {whole})", "({whole} - {whole})", "({whole} * {whole})", "({whole} % {whole})", "({whole} div {whole})",
        "- {whole}", "abs({whole})", "pmod({whole}, {whole})", "CAST({number} AS INT)", "CAST({number} AS BIGINT)",
        "TRY_CAST({number} AS SMALLINT)", "length({string})", "instr({string}, {string})", "year({date})", "dayofweek({date})",
        "datediff({date}, {date})", "floor({floating})", "TRY_CAST({string} AS INT)", "({whole} & {whole})",
        "hour({moment})", "CAST({truth} AS INT)", "nullif({whole}, 0)", "{any:whole}",
    ],
    "floating": [
        "({floating} + {number})", "({number} * {floating})", "({floating} - {floating})", "({floating} / {number})",
        "({whole} / {whole})", "({floating} % {floating})", "- {floating}", "abs({floating})", "CAST({number} AS DOUBLE)",
        "sqrt({number})", "sign({number})", "nanvl({floating}, {floating})", "CAST({floating} AS FLOAT)", "{any:floating}",
    ],
    "decimal": [
        "({decimal} + {decimal})", "({decimal} - {whole})", "({decimal} * {decimal})", "({whole} * {decimal})",
        "({decimal} / {decimal})", "({decimal} / {whole})", "({decimal} % {decimal})", "- {decimal}", "abs({decimal})",
        "CAST({whole} AS DECIMAL(20,3))", "CAST({decimal} AS DECIMAL(12,1))", "round({decimal}, 1)", "ceil({decimal})",
        "bround({decimal})", "CAST({decimal} AS DECIMAL(38,6))", "{any:decimal}",
    ],
    "string": [
        "({string} || {string})", "concat({string}, {whole}, {string})", "upper({string})", "lower({string})", "trim({string})",
        "substring({string}, {whole}, {whole})", "substring({string}, 2)", "left({string}, 2)", "right({string}, {small})",
        "replace({string}, {string}, {string})", "lpad({string}, {small}, {string})", "rpad({string}, {small})",
        "reverse({string})", "CAST({whole} AS STRING)", "CAST({decimal} AS STRING)", "CAST({date} AS STRING)",
        "CAST({moment} AS STRING)", "CAST({truth} AS STRING)", "md5({string})", "{any:string}",
    ],
    "truth": [
        "({number} = {number})", "({number} < {number})", "({number} >= {number})", "({number} <=> {number})",
        "({string} = {string})", "({string} <= {string})", "({date} < {date})", "({moment} >= {date})", "({truth} AND {truth})",
        "({truth} OR {truth})", "(NOT {truth})", "({any} IS NULL)", "({any} IS NOT NULL)", "({truth} IS TRUE)",
        "({whole} IN ({whole}, {whole}, 3))", "({number} IN ({number}, 1))", "({string} IN ({string}, 'a', NULL))",
        "({number} BETWEEN {number} AND {number})", "({string} LIKE '%a_')", "({string} NOT LIKE '_b%')", "isnan({floating})",
        "startswith({string}, {string})", "({number} IS DISTINCT FROM {number})", "({string} = {whole})", "{any:truth}",
        "CAST({string} AS BOOLEAN)", "({decimal} <> {string})", "({date} = {string})",
    ],
    "date": [
        "({date} + {small})", "date_sub({date}, {small})", "add_months({date}, {small})", "last_day({date})", "to_date({moment})",
        "trunc({date}, 'month')", "TRY_CAST({string} AS DATE)", "{any:date}",
    ],
    "moment": ["date_trunc('hour', {moment})", "CAST({date} AS TIMESTAMP)", "date_trunc('week', {moment})", "{any:moment}"],
}  # fmt: skip
"""By the kind of their value; in braces kinds of operands, ``any:`` for a branch of the kind."""

BRANCHES = [
    "if({truth}, {x}, {x})", "coalesce({x}, {x})", "CASE WHEN {truth} THEN {x} WHEN {truth} THEN {x} ELSE {x} END",
    "CASE WHEN {truth} THEN {x} END", "nvl({x}, {x})", "greatest({x}, {x})", "least({x}, {x}, {x})", "nullif({x}, {x})",
    "nvl2({any}, {x}, {x})", "CASE {whole} WHEN {whole} THEN {x} ELSE {x} END",
]  # fmt: skip


class ExpressionDraw:
    """Draws expressions.

    :param leaves: columns and literals by kind, of each kind of :data:`FORMS`; and small whole numbers, under ``small``.
    """

    def __init__(self, draw: random.Random, leaves: Mapping[str, Sequence[str]]) -> None:
        self.draw = draw
        self.leaves = leaves

    def expression(self, kind: str, depth: int) -> str:
        """Return an expression.

        :param kind: of its value; ``number`` for one of three, ``any`` for one of all.
        """
        draw = self.draw
        if kind == "number":
            kind = draw.choice(NUMBERS)
        elif kind == "any":
            kind = draw.choice(list(FORMS))
        if depth == 0 or kind not in FORMS or draw.random() < 0.15:
            return draw.choice(self.leaves[kind])
        form = draw.choice(FORMS[kind])
        if form.startswith("{any:"):
            form = draw.choice(BRANCHES).replace("{x}", "{" + kind + "}")
        while "{" in form:
            head, _, rest = form.partition("{")
            wanted, _, tail = rest.partition("}")
            form = head + self.expression(wanted, depth - 1) + tail
        return form
