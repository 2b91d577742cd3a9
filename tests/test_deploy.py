"""The files of deploy/ against the schemas of what reads them, which check-jsonschema and kubernetes-validate bring.

No engine is at hand: what the files say fits the schemas, but nobody has run them.
"""

import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

DEPLOY = Path(__file__).parents[1] / "deploy"


@pytest.mark.parametrize("name", ["compose.yaml", "compose.replicas.yaml"])
def test_compose_files_fit_the_schema(name):
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(DEPLOY / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_manifests_fit_the_schemas_of_kubernetes():
    found = list(yaml.safe_load_all((DEPLOY / "kubernetes" / "replicas.yaml").read_text()))
    assert [each["kind"] for each in found] == ["Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy"]
    for each in found:
        kubernetes_validate.validate(each, kubernetes_validate.latest_version(), strict=True)


def test_every_replica_is_told_where_the_others_reach_it():
    """Plain text: this needs no checker."""
    compose = (DEPLOY / "compose.replicas.yaml").read_text()
    for number in (1, 2, 3):
        assert f"--replica-url https://replica-{number}:8443" in compose
        assert f"server replica-{number}:8443" in (DEPLOY / "nginx-replicas.conf").read_text()
    assert "proxy_request_buffering off;" in (DEPLOY / "nginx-fleet.conf").read_text()
