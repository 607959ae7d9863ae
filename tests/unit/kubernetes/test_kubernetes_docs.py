"""`docs/kubernetes.md` names what there is: Secrets, priorities, versions, and texts that headway really says."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest
import yaml

from headway.adapters.kubernetes.site import (
    ARTIFACT_KEYS,
    BATCH_ACCOUNT,
    S3_SECRETS,
    SERVING_ACCOUNT,
    SIGNING_SECRET,
    STAGE_ACCOUNT,
)

CHECKOUT = Path(__file__).parents[3]
TEXT = (CHECKOUT / "docs" / "kubernetes.md").read_text()
ADAPTERS = CHECKOUT / "src" / "headway" / "adapters" / "kubernetes"
LEAST_TELLING = 8
"""Shorter pieces of a text say nothing about where they come from."""
OF_KUBERNETES = {"401 Unauthorized", "403 Forbidden", "exceeded quota", "violates PodSecurity", "DEPLOY_FAILED"}


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the table below a heading."""
    part = TEXT.split(f"{heading}\n", 1)[1].split("\n## ")[0].split("\n### ")[0]
    lines = [line for line in part.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@cache
def said() -> list[str]:
    """Return the texts of the adapters, without what is filled in."""
    found = []
    for path in sorted(ADAPTERS.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
            elif isinstance(node, ast.JoinedStr):
                parts = [one.value if isinstance(one, ast.Constant) else "\0" for one in node.values]
                found.append("".join(map(str, parts)))
    return found


@pytest.mark.parametrize("row", rows("## When something fails"), ids=lambda row: row[0][:40])
def test_a_text_in_the_table_of_failures_is_one_that_headway_says(row: list[str]) -> None:
    for quoted in re.findall(r"`([^`]+)`", row[0]):
        ours = quoted
        for theirs in OF_KUBERNETES:
            ours = ours.replace(theirs, "...")
        pieces = [piece.strip(" ,;") for piece in re.split(r"\.\.\.|\d+", ours)]
        telling = [piece for piece in pieces if len(piece) >= LEAST_TELLING]
        assert telling or quoted in OF_KUBERNETES, quoted
        for piece in telling:
            assert any(piece in text for text in said()), f"{piece!r} of {quoted!r}"


def test_everything_that_is_made_by_hand_is_named() -> None:
    listed = " ".join(row[1] for row in rows("### Secrets"))

    for name in (*S3_SECRETS.values(), SIGNING_SECRET, ARTIFACT_KEYS):
        assert f"`{name}`" in listed
    airflow = yaml.safe_load((CHECKOUT / "k8s" / "platform" / "airflow" / "values.yaml").read_text())
    mounted = [one["secret"]["secretName"] for one in airflow["volumes"]]
    chart = [
        airflow["data"]["metadataSecretName"],
        *(value for key, value in airflow.items() if key.endswith("SecretName")),
    ]
    for name in (*mounted, *chart):
        assert f"`{name}`" in listed, name


def test_priorities_are_told_with_their_values() -> None:
    classes = yaml.safe_load_all((CHECKOUT / "k8s" / "base" / "priorities.yaml").read_text())
    told = {row[0].strip("`"): int(row[1]) for row in rows("## Clusters") if row[1].lstrip("-").isdigit()}

    assert told == {one["metadata"]["name"]: one["value"] for one in classes}


def test_versions_are_those_that_are_pinned() -> None:
    pins = {name: (CHECKOUT / "local" / "rig" / name / "go.mod").read_text() for name in ("kubernetes", "kuberay")}
    charts = yaml.safe_load((CHECKOUT / "k8s" / "platform" / "helmfile.yaml").read_text())["releases"]
    gateway = next(one["version"] for one in charts if one["name"] == "eg")

    kubernetes, operator = re.findall(r"Kubernetes (\d+\.\d+\.\d+).*operator (\d+\.\d+\.\d+)", TEXT)[0]
    assert f"k8s.io/kubernetes v{kubernetes}" in pins["kubernetes"]
    assert f"ray-operator v{operator}" in pins["kuberay"]
    assert f"Envoy Gateway {gateway.removeprefix('v')}" in TEXT


def test_accounts_are_told() -> None:
    listed = " ".join(row[0] for row in rows("## Rights"))

    assert all(f"`{name}`" in listed for name in (STAGE_ACCOUNT, BATCH_ACCOUNT, SERVING_ACCOUNT))


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`((?:k8s|docker|tests)/[a-z0-9_./-]+)`", TEXT))))
def test_paths_that_are_named_are_there(path: str) -> None:
    assert (CHECKOUT / path).exists()
