"""The DAG that has capacity up before the peak."""

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG
from airflow.timetables.trigger import DeltaTriggerTimetable

from operators.prescale import PrescaleOperator

EVERY = timedelta(minutes=10)

with DAG(
    dag_id="prescale",
    dag_display_name="Pre-scale",
    description="Plan how many replicas each model needs by the time new ones would serve, and set that as its floor.",
    doc_md="""
One run plans all models whose profile has `prescale.enabled`. Between two runs the floors stand and the autoscaler of
the cluster works above them. If this DAG stops, nothing lowers a floor until it runs again; `reconcile_registry` fails
after two missed runs and says so. A run fails when a model could not be planned: its floor holds, the others are done.
""",
    schedule=DeltaTriggerTimetable(EVERY),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    is_paused_upon_creation=False,
    max_active_runs=1,
    tags=["headway"],
) as prescale:
    PrescaleOperator(task_id="tick")
