"""Whatever files a job leaves and whatever log another writer has: exactly their rows, or a refusal."""

from __future__ import annotations

from faults.life.tries import try_files, try_logs


def test_a_table_has_exactly_the_rows_of_the_files(is_long, seed, figures):
    examples = 2000 if is_long else 60
    try_files(examples, seed)
    figures("files_of_jobs", tried=examples, failed=0, seed=seed)


def test_no_way_of_asking_lists_the_files_of_a_version_that_cannot_be_read(is_long, seed, figures):
    examples = 500 if is_long else 30
    try_logs(examples, seed)
    figures("unreadable_logs", tried=examples, failed=0, seed=seed)
