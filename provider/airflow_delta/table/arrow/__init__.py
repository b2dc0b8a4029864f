"""Stages without Spark: rows of Arrow, pandas or Polars, checked and written by the worker under the rules of Spark's stages."""
