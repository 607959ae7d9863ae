"""The DAG that gives all traffic back to the version that had it before."""

from airflow.sdk import DAG, Param

from operators.rollback import RollbackOperator

with DAG(
    dag_id="rollback",
    dag_display_name="Roll a model back",
    description="Give all traffic to the cluster that had it before; a change of the split, so a matter of seconds.",
    doc_md="""
While a shift is on its way, the candidate loses its share; otherwise the previous cluster gets all the traffic.
The version that was taken back remembers it (`rolled_back`), so it is not released again by itself.

When Airflow is down: `headway rollback MODEL --direct`.
""",
    schedule=None,
    catchup=False,
    is_paused_upon_creation=False,
    max_active_runs=8,
    tags=["headway"],
    params={
        "model": Param(
            "",
            type="string",
            minLength=1,
            title="Model",
            description_md="The served model to take back.",
        ),
    },
) as rollback:
    RollbackOperator(task_id="rollback", model="{{ params.model }}")
