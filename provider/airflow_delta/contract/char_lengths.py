"""Limits of ``char(n)`` and ``varchar(n)`` columns, which Delta stores as strings with the declared type in their metadata."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from airflow_delta.exceptions import DeltaAnalysisException
from airflow_delta.lazy_patterns import lazy_pattern

if TYPE_CHECKING:
    from airflow_delta.contract.payloads import Json

DECLARED = "__CHAR_VARCHAR_TYPE_STRING"
"""Metadata of a field: its declared type as SQL spells it, nested types included."""

_MAX_NESTED = 100

_LIMITED = lazy_pattern(r"(?:var)?char\((\d+)\)")

_CHAR = lazy_pattern(r"char\((\d+)\)")

_NAME = lazy_pattern(r"`((?:[^`]|``)+)`|([^:`,<>]+)")


def char_length(field: Json) -> int | None:
    """Return ``n`` of a ``char(n)`` column; ``None`` for every other field.

    Spark compares such a column with literals, and reads it, as if it were filled up with spaces.
    """
    declared = (field.get("metadata") or {}).get(DECLARED)
    match = _CHAR.fullmatch(declared.strip().lower()) if isinstance(declared, str) else None
    return None if match is None else int(match[1])


def length_problems(field: Json) -> Iterator[tuple[str, str, str]]:
    """Yield path, expression and declared type of each limited string: if the expression is true, the string is too long.

    Strings shorter than a ``char`` are not padded, as in Delta's DataFrame writes.
    """
    declared = (field.get("metadata") or {}).get(DECLARED)
    if isinstance(declared, str):
        name = "`" + field["name"].replace("`", "``") + "`"
        yield from _problems(declared, name, field["name"], 0)


def _problems(declared: str, value: str, path: str, depth: int) -> Iterator[tuple[str, str, str]]:
    if depth == 0 and declared.count("<") > _MAX_NESTED:
        raise DeltaAnalysisException(f"The declared type of column {path} is nested too deeply: {declared[:100]}...")
    text = declared.strip()
    if match := _LIMITED.fullmatch(text.lower()):
        yield path, f"char_length({value}) > {match[1]}", text
        return
    variable = f"x{depth}"
    kind, _, rest = text.partition("<")
    parts = list(_split(rest[:-1])) if rest.endswith(">") else []
    match kind.strip().lower(), parts:
        case "array", [element]:
            for where, wrong, limit in _problems(element, variable, f"{path}[element]", depth + 1):
                yield where, f"exists({value}, {variable} -> {wrong})", limit
        case "map", [key, element]:
            for part, function in ((key, "map_keys"), (element, "map_values")):
                label = "key" if function == "map_keys" else "value"
                for where, wrong, limit in _problems(part, variable, f"{path}[{label}]", depth + 1):
                    yield where, f"exists({function}({value}), {variable} -> {wrong})", limit
        case "struct", fields:
            for entry in fields:
                match = _NAME.match(entry)
                if match is not None and entry[match.end() : match.end() + 1] == ":":
                    name = match[1].replace("``", "`") if match[1] else match[2].strip()
                    inner = f"{value}.`{name.replace('`', '``')}`"
                    yield from _problems(entry[match.end() + 1 :], inner, f"{path}.{name}", depth)


def _split(text: str) -> Iterator[str]:
    """Yield the parts of a list of types, split at commas outside brackets and quotes."""
    depth, start, quoted = 0, 0, False
    for at, char in enumerate(text):
        if char == "`":
            quoted = not quoted
        elif quoted:
            continue
        elif char in "<(":
            depth += 1
        elif char in ">)":
            depth -= 1
        elif char == "," and depth == 0:
            yield text[start:at].strip()
            start = at + 1
    if text[start:].strip():
        yield text[start:].strip()
