"""The DAG that brings the world back to what registry and profiles ask for."""

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG
from airflow.timetables.trigger import DeltaTriggerTimetable

from operators.reconcile import ReconcileOperator

EVERY = timedelta(minutes=5)

with DAG(
    dag_id="reconcile_registry",
    dag_display_name="Reconcile registry and gateway",
    description="Start releases that an alias asks for; end previous and held clusters whose time is over.",
    doc_md="""
A message from the registry may get lost; this looks itself. It starts a release where an alias names a version that
neither serves nor was refused, and it deletes what nobody needs any more: previous clusters after `keep_previous_s`,
held candidates after `hold_s`, and clusters that no route names. It fails where two ticks of the DAG `prescale` were
missed, because nothing else lowers a floor.
""",
    schedule=DeltaTriggerTimetable(EVERY),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    is_paused_upon_creation=False,
    max_active_runs=1,
    tags=["headway"],
) as reconcile_registry:
    ReconcileOperator(task_id="reconcile")
