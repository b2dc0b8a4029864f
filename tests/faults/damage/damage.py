"""Damage to the files of a table: drawn from a seed, applied to a copy."""

from __future__ import annotations

import os
import random
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

BYTES = ("flip", "bit", "overwrite", "truncate", "drop", "insert", "zero", "doubled")
LINES = ("line lost", "lines swapped", "line doubled")
SIGNS = {"digit": (re.compile(rb"\d"), b"0123456789"), "letter": (re.compile(rb"[a-z]"), b"abcdefghijklmnopqrstuvwxyz")}
"""What stays valid JSON more often than not."""
FILES = ("deleted", "swapped", "copied over", "copied to")
VERSION = re.compile(r"^\d{20}")


@dataclass(frozen=True)
class Damage:
    """One damage to one file.

    :param what: one of the kinds above.
    :param path: the file, relative to the table.
    :param at: a position between 0 and 1.
    :param other: another file, or the name of a copy.
    """

    what: str
    path: str
    at: float = 0.0
    noise: bytes = b""
    other: str | None = None

    def __str__(self) -> str:
        return f"{self.what} at {self.at!r} of {self.path}, other {self.other}, noise {self.noise.hex()}"


def draw(number: int, files: Sequence[str], seed: str) -> Damage:
    """Return damage number ``number``: first the loss of every single file, then anything."""
    if number < len(files):
        return Damage("deleted", files[number])
    chance = random.Random(f"{seed}:{number}")
    # Of each kind of file as many, however many there are.
    kind = chance.choice(sorted({_kind(name) for name in files}))
    path = chance.choice([name for name in files if _kind(name) == kind])
    kinds = [*BYTES, *FILES[1:], *((*LINES, *SIGNS, *SIGNS, *SIGNS) if _is_text(path) else ("flip", "bit", "bit"))]
    what, at, noise = chance.choice(kinds), chance.random(), chance.randbytes(chance.randint(1, 16))
    alike = [name for name in files if name != path and _kind(name) == _kind(path)]
    if what == "copied to" and (copy := _another_version(path, chance)) not in (None, *files):
        return Damage(what, path, other=copy)
    if what in FILES:
        what = what if alike and what != "copied to" else "deleted"
        return Damage(what, path, other=chance.choice(alike) if what != "deleted" else None)
    return Damage(what, path, at, noise)


def copy(original: Path, target: Path) -> None:
    """Copy a table; files that nothing writes to share their content."""
    shutil.copytree(original, target, copy_function=os.link)


def apply(table: Path, damage: Damage) -> bool:
    """Damage a copy made by :func:`copy`; return whether anything changed."""
    path = table / damage.path
    content = path.read_bytes()
    if damage.what == "deleted":
        path.unlink()
        return True
    if damage.other is not None:
        other = table / damage.other
        there = other.read_bytes() if damage.what != "copied to" else b""
        if damage.what == "swapped":
            _replace(path, there)
        _replace(other, content)
        return content != there
    changed = _changed(content, damage)
    _replace(path, changed)
    return changed != content


def _replace(path: Path, content: bytes) -> None:
    status = path.stat() if path.exists() else None
    path.unlink(missing_ok=True)
    path.write_bytes(content)
    if status is not None:
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def _changed(content: bytes, damage: Damage) -> bytes:
    noise = damage.noise
    at = int(damage.at * len(content))
    match damage.what:
        case "flip":
            return content[:at] + bytes(byte ^ (noise[0] or 1) for byte in content[at : at + 1]) + content[at + 1 :]
        case "bit":
            return content[:at] + bytes(byte ^ (1 << noise[0] % 8) for byte in content[at : at + 1]) + content[at + 1 :]
        case "overwrite":
            return content[:at] + noise + content[at + len(noise) :]
        case "truncate":
            return content[:at]
        case "drop":
            return content[:at] + content[at + len(noise) :]
        case "insert":
            return content[:at] + noise + content[at:]
        case "zero":
            return content[:at] + b"\0" * min(64, len(content) - at) + content[at + 64 :]
        case "doubled":
            return content + content
        case "digit" | "letter":
            signs, others = SIGNS[damage.what]
            places = [found.start() for found in signs.finditer(content)]
            if not places:
                return content
            place = places[int(damage.at * len(places))]
            other = others[(others.index(content[place]) + 1 + noise[0] % (len(others) - 1)) % len(others)]
            return content[:place] + bytes([other]) + content[place + 1 :]
        case _:
            return _changed_lines(content, damage.what, damage.at)


def _changed_lines(content: bytes, what: str, at: float) -> bytes:
    lines = content.splitlines(keepends=True)
    number = int(at * len(lines))
    if what == "line lost":
        del lines[number : number + 1]
    elif what == "line doubled":
        lines[number:number] = lines[number : number + 1]
    else:
        lines[number - 1 : number + 1] = reversed(lines[number - 1 : number + 1])
    return b"".join(lines)


def _is_text(path: str) -> bool:
    return path.endswith((".json", ".crc", "_last_checkpoint", ".txt", "_committed", "_aborted")) or "_commit-" in path


def _kind(path: str) -> str:
    """Return what files of one kind have in common: their path without versions, numbers and ids."""
    return re.sub(r"[0-9a-f-]{8,}|[0-9]+", "", path)


def _another_version(path: str, chance: random.Random) -> str | None:
    """Return the name of a copy for another version. A commit under a new name is a commit, so it gets none."""
    folder, _, name = path.rpartition("/")
    if not VERSION.match(name) or (name.endswith(".json") and "." not in name.removesuffix(".json")):
        return None
    version = chance.choice((chance.randint(0, 8), 9))
    return f"{folder}/{version:020d}{name[20:]}"
