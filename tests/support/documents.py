"""Blocks of code in documents."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Block:
    """A fenced block of a document."""

    path: Path
    line: int
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"


def blocks_of(path: Path) -> Iterator[Block]:
    """Return the blocks of a document, in order."""
    lines = path.read_text(encoding="utf-8").splitlines()
    start, fence, kind, body = 0, "", "", []
    for number, line in enumerate(lines, 1):
        match = re.match(r"\s*(```+)(.*)$", line)
        if fence:
            if match and match[1] == fence and not match[2].strip():
                yield Block(path, start, kind, textwrap.dedent("\n".join(body)) + "\n")
                fence = ""
            else:
                body.append(line)
        elif match:
            start, fence, kind, body = number, match[1], match[2].strip(), []
    assert not fence, f"{path}:{start}: a block without an end"


def section(path: Path, heading: str) -> list[Block]:
    """Return the blocks below a heading of the second level."""
    lines = path.read_text(encoding="utf-8").splitlines()
    start = lines.index(f"## {heading}") + 1
    end = next((number for number, line in enumerate(lines[start:], start) if line.startswith("## ")), len(lines))
    return [block for block in blocks_of(path) if start < block.line <= end]


def shell(blocks: list[Block]) -> str:
    """Return a script that does what the blocks say: runs commands, and saves Python under the name in its first line."""
    script = ["set -euo pipefail"]
    for block in blocks:
        if block.kind == "bash":
            script.append(block.text)
        elif block.kind == "python":
            name = re.match(r"# (\S+\.py)\n", block.text)
            assert name, f"{block} does not say what to save it as"
            script.append(f"cat > {name[1]} <<'END_OF_FILE'\n{block.text}END_OF_FILE\n")
    return "\n".join(script)
