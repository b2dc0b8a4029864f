"""Kinds of intents: what features keep open in a table's log, from one ``txn`` until another one ends it.

While an intent is open, it does not expire, our commits let it end first, and the log and the files that it needs stay. The core
follows these rules and does not know whose intents they are. A kind is listed here, below the core, and not registered by its
feature: every process that opens a table must know all kinds, whether or not it has ever imported the feature.
"""

from __future__ import annotations

from typing import NamedTuple

INTENT_APP = "airflow.intent/"
"""Prefix of the application id of an intent of a publication of several tables; the id of the publication follows."""
STATE_APP = "airflow.publication/"
"""Prefix of the application id whose version is the state of a publication on the table: it ends the intent."""


class IntentKind(NamedTuple):
    """How one kind of intents is written, and who knows more about it.

    :param begins: prefix of the application id of an intent; an id that is unique over all kinds follows.
    :param ends: prefix of the application id that ends the intent with the same id.
    :param name: what messages call one; ``{id}`` stands for its id.
    :param remedy: a sentence with ``{id}``: how to end one by hand.
    :param rules: module of the feature with the rules that need more than this
        (:class:`~airflow_delta.log.intent_rules.IntentRules`). It is imported only when it is asked.
    """

    begins: str
    ends: str
    name: str
    remedy: str
    rules: str

    def pair(self, app_id: str) -> tuple[str, str]:
        """Return the application ids of an intent and of its end, by either of them."""
        intent = app_id.removeprefix(self.begins if app_id.startswith(self.begins) else self.ends)
        return f"{self.begins}{intent}", f"{self.ends}{intent}"


PUBLICATIONS = IntentKind(
    begins=INTENT_APP,
    ends=STATE_APP,
    name="publication {id} of several tables",
    remedy="`airflow delta settle <its tables> --publication {id}` ends it.",
    rules="airflow_delta.publication.rules",
)

INTENT_KINDS = (PUBLICATIONS,)
"""All kinds. None of their prefixes begins with another one."""

TAKES_BACK = PUBLICATIONS
"""The kind whose end may take a commit back (:func:`airflow_delta.table.state.find_commit.stands`)."""
