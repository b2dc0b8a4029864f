"""Which files a source names: its directory, and a glob below it."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from airflow_delta.contract.staging_directory import is_hidden
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.lazy_patterns import lazy_pattern
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.log.storage.file_names import LOG_DIRECTORY
from airflow_delta.table.positions.files.globs import part_expression

if TYPE_CHECKING:
    from airflow_delta.log.storage.base import FileStatus, LogStore

_WILDCARD = lazy_pattern(r"(?<!\\)[*?\[{]")
_AUTHORITY = lazy_pattern(r"[A-Za-z][A-Za-z0-9+.-]*://[^/]*")


@dataclass(frozen=True, slots=True)
class SourcePattern:
    """Where files to load are.

    :ivar base: location of the directory before the first wildcard.
    :ivar names: glob of their paths below it; empty: all files directly in it.
    :ivar recursive: also those in directories below.
    """

    base: str
    names: str
    recursive: bool = False

    @classmethod
    def parse(cls, source: str, pattern: str | None = None, *, recursive: bool = False) -> SourcePattern:
        r"""Return the pattern of a source: its directories up to the first wildcard, and the rest.

        In one part of a path ``*`` is any text, ``?`` one character, ``[abc]``, ``[a-z]`` and ``[!abc]`` one of some, ``{a,b}``
        one of several strings; a backslash takes the next character literally.

        :param pattern: a glob below the source, which then is a directory.
        :raises DeltaIllegalArgumentException: if a glob is not valid, or the bucket has a wildcard.
        """
        for name, value in (("source", source), ("pattern", pattern)):
            if value is not None and (not isinstance(value, str) or not value.strip() or value == "None"):
                raise DeltaIllegalArgumentException(f"{name} must be a non-empty string, got {value!r}.")
        whole = source if pattern is None else f"{source.rstrip('/')}/{pattern.lstrip('/')}"
        authority = found[0] if (found := _AUTHORITY.match(whole)) else ""
        rest = whole[len(authority) :]
        if _WILDCARD.search(authority):
            raise DeltaIllegalArgumentException(f"The source {source!r} has a wildcard in its bucket. Name one bucket.")
        wildcard = _WILDCARD.search(rest)
        if wildcard is None and (rest.endswith("/") or not rest):
            base, names = rest.rstrip("/"), ""
        elif wildcard is None and "/" not in rest:  # a name below the connection's base path
            base, names = rest, ""
        else:
            slash = rest.rfind("/", 0, len(rest) if wildcard is None else wildcard.start())
            base, names = rest[: max(slash, 0)], rest[slash + 1 :]
        if not authority and not base:
            base = "/" if rest.startswith("/") else ""
        if not authority and not base:
            raise DeltaIllegalArgumentException(f"The source {source!r} has no directory before its first wildcard. Name one.")
        base = authority + base
        parsed = cls(re.sub(r"\\(.)", r"\1", base), names, recursive)
        parsed.matcher()
        return parsed

    def matcher(self) -> re.Pattern[str]:
        """Return the expression that the paths below the base match.

        :raises DeltaIllegalArgumentException: if the glob is not valid.
        """
        *directories, name = (self.names or "*").split("/")
        if "**" in self.names:
            raise DeltaIllegalArgumentException(f"The pattern {self.names!r} has **. Use recursive=True.")
        parts = "".join(f"{part_expression(part, self.names)}/" for part in directories)
        deeper = "(?:[^/]+/)*" if self.recursive else ""
        return re.compile(f"{parts}{deeper}{part_expression(name, self.names)}", re.DOTALL)


def matching(store: LogStore, pattern: SourcePattern) -> tuple[str, list[FileStatus]]:
    """Return the files that a pattern selects, without hidden ones (``_`` and ``.``, of a directory, too).

    A source without wildcards is a file or a directory.

    :return: the directory in the store that the source is, and the files.
    """
    names = pattern.names
    if not names or _WILDCARD.search(names):
        return "", _selected(store, "", pattern)
    plain = re.sub(r"\\(.)", r"\1", names)
    if store.local_root is not None and os.path.islink(f"{store.local_root}/{plain}"):
        raise store.error(
            DeltaIllegalArgumentException,
            f"The source {plain} of {store.root} is a symbolic link. Nothing was staged. Name the file itself; a directory with "
            "a slash at its end.",
        )
    status = store.head(plain)
    if status is None or _is_directory(store, plain):
        return plain, _selected(store, plain, SourcePattern(pattern.base, "", pattern.recursive))
    if is_hidden(plain):
        raise store.error(
            DeltaIllegalArgumentException,
            f"The file {plain} of {store.root} is hidden (its name begins with '_' or '.'): Spark does not read it. Rename it.",
        )
    return "", [status]


def _selected(store: LogStore, directory: str, pattern: SourcePattern) -> list[FileStatus]:
    prefix = f"{directory}/" if directory else ""
    matches = pattern.matcher().fullmatch
    listed = ((status, status.path.removeprefix(prefix)) for status in store.list_readable(directory))
    found, tables = [], set()
    for status, path in listed:
        above, log, _ = f"/{path}".partition(f"/{LOG_DIRECTORY}/")
        if log:
            tables.add(f"{above[1:]}/".lstrip("/"))
        elif matches(path) and not is_hidden(path):
            found.append((status, path))
    inside = next((path for _, path in found if any(path.startswith(table) for table in tables)), None)
    if inside is not None:
        raise file_of_a_table(store, f"The file {prefix}{inside} below {store.root}", f"there is a {LOG_DIRECTORY}")
    link = next((status.path for status, _ in found if status.is_link), None)
    if link is not None:  # its target may be loaded under its own name, too
        raise store.error(
            DeltaIllegalArgumentException,
            f"The file {link} below {store.root} is a symbolic link. Nothing was staged. Put the file itself there, or leave the "
            "link out by the pattern.",
        )
    return [status for status, _ in found]


def _is_directory(store: LogStore, path: str) -> bool:
    """Return whether a path that a disk or HDFS knows is a directory; an object store has none."""
    directory, _, name = path.rpartition("/")
    return store.probes and name in store.list_directories(directory)


def file_of_a_table(store: LogStore, what: str, why: str) -> DeltaIllegalArgumentException:
    """Return the error of what is in the directory of a Delta table."""
    return store.error(
        DeltaIllegalArgumentException,
        f"{what} is in the directory of a Delta table ({why}): its log alone says which of its files count. Nothing was staged. "
        "Read new rows of a table with table.new_rows(), or leave its directory out by the pattern.",
    )
