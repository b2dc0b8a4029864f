"""What is wrong with a text that does not parse, in the words of its author and not of the parser."""

from __future__ import annotations

from airflow_delta.lazy_patterns import lazy_pattern

_MISSING = lazy_pattern(r"Required keyword: '(\w+)' missing for")

_EXPECTING = lazy_pattern(r"Expect(?:ing|ed) (\S+)")

_SHOWN = 30


def syntax_problem(error: Exception) -> str:
    """Return a phrase that says what is wrong, and where: "something is missing after 'AND' (character 10)".

    :param error: an error of sqlglot.
    """
    details = getattr(error, "errors", None)
    if details:
        said = details[0]
        description, token = str(said.get("description") or ""), str(said.get("highlight") or "").strip()[:_SHOWN]
        near = f"{token!r} ({_place(said)})"
        if _MISSING.match(description):
            return f"something is missing after {near}"
        if found := _EXPECTING.match(description):
            wanted = found[1].rstrip(".")
            return f"{wanted!r} is missing after {near}" if not wanted.isalnum() else f"a {wanted.lower()} is expected at {near}"
        return f"{near} is not expected there"
    text = str(error).partition("\n")[0]
    if "tokenizing" in text or text.startswith("Missing "):
        return "a quote or a comment is not closed, or a character cannot be read"
    return "it cannot be read"


def _place(said: dict[str, object]) -> str:
    line = said.get("line")
    character = f"character {said.get('col')}"
    return character if line in (None, 1) else f"line {line}, {character}"
