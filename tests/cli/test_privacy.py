import json

import pytest
from click.testing import CliRunner

from fedavg.cli import cli
from programs import fedavg

COMMON = ["--delta", "1e-6", "--clients", "10000", "--cohort", "100"]


def answers(*words):
    result = CliRunner().invoke(cli, ["privacy", *COMMON, *map(str, words), "--json"], catch_exceptions=False)
    return {(row["sampling"], row["accountant"]): row for row in json.loads(result.stdout)["answers"]}


def test_noise_for_a_budget_and_back():
    noise = answers("--epsilon", "2", "--rounds", "100")
    assert set(noise) == {("poisson", "rdp"), ("poisson", "pld"), ("fixed", "rdp")}
    poisson = noise["poisson", "rdp"]["noise_multiplier"]
    assert noise["poisson", "pld"]["noise_multiplier"] < poisson < noise["fixed", "rdp"]["noise_multiplier"]
    back = answers("--noise", poisson, "--rounds", "100")
    assert 1.99 < back["poisson", "rdp"]["epsilon"] <= 2
    assert back["fixed", "rdp"]["relation"] == "replace one client"


def test_for_people_it_says_what_is_assumed():
    result = CliRunner().invoke(cli, ["privacy", *COMMON, "--noise", "1", "--rounds", "10"], catch_exceptions=False)
    assert "add or remove one client" in result.stdout
    assert "replace one client" in result.stdout
    assert "--sampling poisson" in result.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--noise", "1"], "expected exactly two of --epsilon, --noise and --rounds"),
        (["--noise", "1", "--epsilon", "1", "--rounds", "3"], "expected exactly two of"),
        (["--noise", "-1", "--rounds", "3"], "noise: got -1.0; expected a finite number of at least 0"),
        (["--noise", "1", "--rounds", "3", "--cohort", "10001"], "got a cohort of 10001 out of 10000 clients"),
        (["--noise", "1", "--rounds", "3", "--delta", "2"], "delta: got 2.0; expected a number above 0 and below 1"),
    ],
)
def test_a_bad_question_is_one_clear_message(words, message):
    result = fedavg("privacy", *COMMON, *words)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_a_run_shows_its_epsilon(tmp_path):
    stages = "clip:0.5,weigh:equal,noise:1.0"
    options = ["-C", "0.03", "--rounds", "2", "--no-plot", "--stages", stages, "--sampling", "poisson"]
    result = fedavg("run", "mnist-2nn", *options, "--run-dir", tmp_path / "run")
    assert result.returncode == 0, result.stderr
    assert "epsilon" in result.stderr
    assert "add or remove one client); seeded noise protects nobody" in " ".join(result.stdout.split())
