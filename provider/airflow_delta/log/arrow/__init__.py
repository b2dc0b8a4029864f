"""Python values to Arrow arrays and back, without the pandas import that pyarrow's own conversions bring."""
