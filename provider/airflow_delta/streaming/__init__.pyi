from airflow_delta.streaming.sink import DeltaBatchSink as DeltaBatchSink
