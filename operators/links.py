"""Buttons on the tasks of a release. The address is known when the task has run; Airflow keeps it then."""

from typing import Any

from airflow.sdk import BaseOperatorLink


class ReportLink(BaseOperatorLink):
    """To the report of the release in MLflow."""

    name = "Report"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return what the task found out; empty if it came to no report."""
        return str(getattr(operator, "report_url", "") or "")


class ModelLink(BaseOperatorLink):
    """To the model version in MLflow."""

    name = "Model version"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return what the task found out; empty if nothing was selected."""
        return str(getattr(operator, "model_url", "") or "")
