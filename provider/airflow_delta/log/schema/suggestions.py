"""What to say of a name that is not there: the nearest one, and the list of those that are."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_delta.contract.near_words import near_words

_LISTED = 50


def known_names(name: str, names: Sequence[str], what: str = "columns") -> str:
    """Return sentences without a final period: "Did you mean 'amount'? The columns are id, amount".

    :param names: those that there are.
    :param what: what they name, in the plural.
    """
    near = nearest(name, names)
    meant = f"Did you mean {near!r}? " if near is not None else ""
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    listed = f"The {what} are {', '.join(names[:_LISTED])}{more}" if names else f"There are no {what}"
    return meant + listed


def nearest(name: str, names: Sequence[str]) -> str | None:
    """Return the one of some names that its author may have meant; ``None`` if none is near."""
    folded = {known.lower(): known for known in names}
    found = near_words(name.lower(), folded)
    return folded[found[0]] if found else None
