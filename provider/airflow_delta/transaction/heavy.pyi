from airflow_delta.transaction.conflicts.carried_rows import CarriedRows as CarriedRows
from airflow_delta.transaction.conflicts.moved_rows import all_rows as all_rows
from airflow_delta.transaction.conflicts.moved_rows import find_moved as find_moved
from airflow_delta.transaction.conflicts.moved_rows import old_files_of as old_files_of
from airflow_delta.transaction.conflicts.moved_rows import rows_in as rows_in
from airflow_delta.transaction.conflicts.rearranged_rows import RearrangedRows as RearrangedRows
