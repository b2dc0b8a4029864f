from airflow_delta.table.audit.audited_table import AuditedTable as AuditedTable
from airflow_delta.table.audit.held_keys import HeldKeys as HeldKeys
