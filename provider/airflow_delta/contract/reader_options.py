"""Which options of Spark's readers COPY INTO takes: it records each file as loaded, so none may drop files, rows or columns.

Standard library only, as a Dag is parsed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from airflow_delta.contract.options import given_options
from airflow_delta.exceptions import DeltaIllegalArgumentException


class Refused(NamedTuple):
    """An option that drops something.

    :ivar unless: values that do not.
    :ivar why: what it drops, and what to do instead.
    :ivar formats: that it is one of; empty: all.
    """

    unless: Callable[[str], bool]
    why: str
    formats: tuple[str, ...] = ()


def _never(_value: str) -> bool:
    return False


def _all_rows(value: str) -> bool:
    try:
        return float(value) >= 1
    except ValueError:
        return False


_FALSE, _TRUE = "false".__eq__, "true".__eq__
_FILES = "Spark would pass over {} that the commit records as loaded. "

REFUSED: Mapping[str, Refused] = {
    "pathGlobFilter": Refused(_never, _FILES.format("files") + "Select files by pattern."),
    "modifiedBefore": Refused(_never, _FILES.format("files") + "Select files by pattern, or put later ones elsewhere."),
    "modifiedAfter": Refused(_never, _FILES.format("files") + "Use modified_after of the task."),
    "recursiveFileLookup": Refused(_FALSE, "Spark is given the files one by one. Use recursive=True of the task."),
    "ignoreCorruptFiles": Refused(
        _FALSE, _FILES.format("damaged files") + "Leave it out, and move such a file away, or leave it out by pattern."
    ),
    "ignoreMissingFiles": Refused(_FALSE, _FILES.format("missing files") + "Leave it out: the next run loads what is there."),
    "badRecordsPath": Refused(
        _never, _FILES.format("rows") + "Use mode=PERMISSIVE with columnNameOfCorruptRecord to keep rows that do not parse."
    ),
    "mode": Refused(
        lambda value: value != "dropmalformed",
        _FILES.format("rows") + "FAILFAST, the default, fails; PERMISSIVE keeps them, their text in columnNameOfCorruptRecord.",
        ("csv", "json"),
    ),
    "ignoreExtension": Refused(_TRUE, _FILES.format("files without .avro") + "Leave it out.", ("avro",)),
    "mergeSchema": Refused(_TRUE, "Spark would leave out columns that only some files have. Leave it out.", ("parquet", "orc")),
    "samplingRatio": Refused(_all_rows, "Spark would leave out columns that only other rows have. Leave it out.", ("json",)),
}
"""By their names in Spark's documentation (Generic File Source Options, and those of each format); Databricks has more."""

_TEXT = """columnNameOfCorruptRecord compression dateFormat enableDateTimeParsingFallback encoding charset lineSep locale
multiLine singleVariantColumn timeFormat timestampFormat timestampNTZFormat timeZone"""

TAKEN: Mapping[str, frozenset[str]] = {
    file_format: frozenset(f"basePath {names}".split())
    for file_format, names in {
        "csv": f"""{_TEXT} charToEscapeQuoteEscaping codec columnPruning comment delimiter emptyValue enforceSchema escape
            escapeQuotes extension header ignoreLeadingWhiteSpace ignoreTrailingWhiteSpace inferSchema inputBufferSize
            maxCharsPerColumn maxColumns nanValue negativeInf nullValue positiveInf preferDate quote quoteAll samplingRatio sep
            unescapedQuoteHandling""",
        "json": f"""{_TEXT} allowBackslashEscapingAnyCharacter allowComments allowNonNumericNumbers allowNumericLeadingZeros
            allowSingleQuotes allowUnquotedControlChars allowUnquotedFieldNames dropFieldIfAllNull ignoreNullFields
            inferTimestamp prefersDecimal pretty primitivesAsString sortKeys useUnsafeRow writeNonAsciiCharacterAsCodePoint""",
        "parquet": "compression datetimeRebaseMode int96RebaseMode parquet.compression",
        "avro": """avroSchema avroSchemaUrl compression datetimeRebaseMode enableStableIdentifiersForUnionType mode
            positionalFieldMatching recordName recordNamespace recursiveFieldMaxDepth stableIdentifierPrefixForUnionType""",
        "orc": "compression orc.compress",
        "text": "compression encoding lineSep wholetext",
    }.items()
}
"""Options that drop nothing, by format; those of writers change nothing. With ``multiLine``, JSON files are checked for rows that
Spark would drop (``spark/source_files.py``)."""


def check_reader_options(options: Any, file_format: str, *, whose: str) -> None:
    """Refuse options of Spark's reader that drop something of files that count as loaded, and those that nobody knows.

    :param options: a mapping, or JSON; a template that is not JSON yet is not checked.
    :param whose: the operator or task, for the message.
    :raises DeltaIllegalArgumentException: if there is one.
    """
    refused = {name.lower(): (name, rule) for name, rule in REFUSED.items() if file_format in (rule.formats or (file_format,))}
    taken = {name.lower() for name in TAKEN[file_format]}
    for name, value in given_options(options).items():
        folded = str(name).lower()
        known = refused.get(folded)
        if known is not None and not known[1].unless(str(value).strip().lower()):
            raise DeltaIllegalArgumentException(f"{whose} has the format option {name}={value!r}. {known[1].why}")
        if known is None and folded not in taken:
            raise DeltaIllegalArgumentException(
                f"{whose} has the format option {name}, which is not known to keep all rows of {file_format} files. Known: "
                f"{', '.join(sorted(TAKEN[file_format]))}. Set others in the configuration of the Spark session."
            )
