"""OPTIMIZE, ZORDER BY, REORG and auto compaction."""
