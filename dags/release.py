"""The DAG that brings one model version to 100 % of the traffic, or says why not."""

from datetime import timedelta

from airflow.sdk import DAG, Param

from operators.release import (
    ApproveOperator,
    CanaryOperator,
    PlanOperator,
    QuantizeOperator,
    RecordOperator,
    RolloutOperator,
    SelectOperator,
    ShiftOperator,
    StageOperator,
)

MAX_RELEASES = 4
"""Releases at once, over all models (design rule 13.9); the others wait and are visible as queued."""

SCHEMES = ["profile", "none", "fp8-dynamic", "fp8", "w8a8", "w4a16-gptq", "w4a16-awq", "nvfp4", "fp8-block"]

with DAG(
    dag_id="release",
    dag_display_name="Release a model",
    description="Bring a model version from the registry to 100 % of the traffic, step by step and with proof.",
    doc_md="""
**What it does.** Freezes the version, checks its files, plans, quantizes, stages the weights, brings a candidate up
beside stable, compares the two under paired load, and moves the traffic by steps.

**How it ends.** The run succeeds only if the version has all the traffic. Whatever else happens, the task `record`
puts all traffic back on stable, deletes the candidate (a *held* one stays until a person decides), and fails with the
reason in one sentence. The same reason is on the model version in MLflow (`headway.reason`) and in the report.

**Again.** Start a new run; do not clear single tasks.
""",
    schedule=None,
    catchup=False,
    is_paused_upon_creation=False,
    max_active_runs=MAX_RELEASES,
    dagrun_timeout=timedelta(days=3),
    tags=["headway"],
    params={
        "model": Param(
            "",
            type="string",
            minLength=1,
            title="Model",
            description_md="Name of the registered model in MLflow; it needs a profile in `profiles/`.",
            section="What",
        ),
        "version": Param(
            None,
            type=["null", "integer"],
            minimum=1,
            title="Version",
            description_md="Number of the version. Empty: the version that the alias names.",
            section="What",
        ),
        "alias": Param(
            None,
            type=["null", "string"],
            title="Alias",
            description_md="Alias in the registry. Empty: the alias of the profile, `champion` if it names none.",
            section="What",
        ),
        "scheme": Param(
            "profile",
            type="string",
            enum=SCHEMES,
            title="Quantization",
            description_md="`profile` takes the first scheme of the profile that fits the hardware.",
            section="How",
        ),
        "skip_approval": Param(
            False,
            type="boolean",
            title="Skip the approval",
            description_md="Do not ask a person between canary and shift, even if the profile asks for it.",
            section="How",
        ),
    },
) as release:
    model = "{{ params.model }}"
    select = SelectOperator(
        task_id="select",
        model=model,
        version="{{ params.version }}",
        alias="{{ params.alias }}",
        # Not in the form: the webhook names a version that counts only as long as the alias names it too.
        while_alias="{{ (dag_run.conf or {}).get('while_alias') }}",
    )
    ref = select.output
    plan = PlanOperator(task_id="plan", model=model, ref=ref, scheme="{{ params.scheme }}")
    quantize = QuantizeOperator(task_id="quantize", model=model, ref=ref)
    stage = StageOperator(task_id="stage", model=model, ref=ref)
    rollout = RolloutOperator(task_id="rollout", model=model, ref=ref)
    canary = CanaryOperator(task_id="canary", model=model, ref=ref)
    approve = ApproveOperator(task_id="approve", model=model, ref=ref, skip="{{ params.skip_approval }}")
    shift = ShiftOperator(task_id="shift", model=model, ref=ref)
    # A teardown runs also when a person marks the whole run as failed: no candidate outlives its release.
    record = RecordOperator(task_id="record", model=model, ref=ref).as_teardown(on_failure_fail_dagrun=True)

    select >> plan >> quantize >> stage >> rollout >> canary >> approve >> shift >> record
