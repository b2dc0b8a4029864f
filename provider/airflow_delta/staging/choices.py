"""The words that parameters take, known while a Dag is parsed and when its tasks run."""

from __future__ import annotations

RERUN_POLICIES = ("skip", "replace", "append", "fail")
KEY_CHECKS = ("warn", "fail", "off")
ISOLATION_LEVELS = ("Serializable", "WriteSerializable")
WRITE_MODES = ("append", "overwrite", "dynamic")
CREATE_MODES = ("create", "create_if_not_exists", "replace", "create_or_replace")
CREATE_FROM_ROWS = ("create", "create_or_replace", "replace")
STREAM_MODES = ("append", "complete")
CHECKPOINT = ("inline", "off")
FAIL_OR_WARN = ("fail", "warn")
