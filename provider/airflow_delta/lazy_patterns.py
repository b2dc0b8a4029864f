"""Regular expressions that are compiled when they are first used.

Most processes use a few of those that their modules have, and compiling all of them took a tenth of an import of this package.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    lazy_pattern = re.compile  # type checkers need to know of no difference
else:

    def lazy_pattern(text: str | bytes, flags: int = 0) -> _Pattern:
        """Return what :func:`re.compile` does, without compiling it yet."""
        return _Pattern(text, flags)


_METHODS = ("finditer", "findall", "fullmatch", "match", "search", "split", "sub", "subn")


class _Pattern:
    def __init__(self, text: str | bytes, flags: int) -> None:
        self.pattern = text
        self._flags = flags

    def __getattr__(self, name: str) -> Any:
        # Asked for what is not set yet; then the methods are, so that later uses cost what those of a compiled one do.
        compiled = re.compile(self.pattern, self._flags)
        self.__dict__.update({each: getattr(compiled, each) for each in _METHODS})
        return getattr(compiled, name)
