"""Register a model directory as the next version in MLflow, as a training pipeline would.

    register_model.py MODEL NUMBER DIRECTORY DESCRIPTION

Does nothing if version NUMBER is there. MLflow's address and its S3 credentials come from the environment
(`MLFLOW_TRACKING_URI`, `MLFLOW_S3_ENDPOINT_URL`, `AWS_SHARED_CREDENTIALS_FILE`).
"""

import sys

from mlflow import MlflowClient


def main(model: str, number: int, directory: str, description: str) -> int:
    """Register one version; return the exit code."""
    client = MlflowClient()
    if not client.search_registered_models(f"name = '{model}'"):
        client.create_registered_model(model)
    if number in {int(v.version) for v in client.search_model_versions(f"name = '{model}'")}:
        print(f"{model} version {number} is registered already")
        return 0
    experiment = client.get_experiment_by_name(model)
    run = client.create_run(experiment.experiment_id if experiment else client.create_experiment(model))
    client.log_artifacts(run.info.run_id, directory, "model")
    client.set_terminated(run.info.run_id)
    created = client.create_model_version(
        model, f"{run.info.artifact_uri}/model", run.info.run_id, description=description
    )
    if int(created.version) != number:
        print(
            f"{model} got version {created.version} where {number} was asked for, because other versions were "
            f"registered or deleted; delete the registered model {model} in MLflow and try again",
            file=sys.stderr,
        )
        return 1
    print(f"{model} version {number} registered from {directory}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]))
