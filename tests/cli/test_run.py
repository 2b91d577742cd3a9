"""The command line, as a user meets it: real processes."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

import programs
from programs import fedavg

#: Long enough to be stopped in the middle; rounds are short, and few are judged.
ROUNDS = 40
LONG = ["mnist-2nn", "-C", "0.02", "--rounds", str(ROUNDS), "--eval-every", "20", "--no-plot"]
FAST = ["mnist-2nn", "--rounds", "3", "-C", "0.03", "--lr", "0.1", "--no-plot"]


def test_help_names_the_commands():
    result = fedavg("--help")
    assert result.returncode == 0
    for command in ("run", "resume", "data", "bench"):
        assert command in result.stdout


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["paper", "--help"], ["data", "--help"]])
def test_help_does_not_wait_for_pytorch(words):
    program = f"""
import sys
from fedavg.cli import cli
try:
    cli({words})
finally:
    assert "torch" not in sys.modules
"""
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert shown.returncode == 0, shown.stderr
    assert "Usage: " in shown.stdout


def test_every_option_of_the_plan_has_a_flag_with_help():
    from fedavg.plan import help_of, option_names

    text = " ".join(fedavg("run", "--help").stdout.split())
    for name in option_names():
        assert f"--{name.replace('_', '-')} " in text or f"-{name} " in text
        assert " ".join(help_of(name).split())[:40] in text


def test_run_and_read_its_json(tmp_path):
    options = [
        "-C",
        "0.1",
        "-E",
        "1",
        "-B",
        "10",
        "--lr",
        "0.1",
        "--rounds",
        "4",
        "--partition",
        "iid",
        "--seed",
        "0",
        "--target",
        "0.8",
        "--json",
    ]
    result = fedavg("run", "mnist-2nn", *options, "--run-dir", tmp_path / "run")
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    for key in ("rounds_to_target", "final_accuracy", "best_accuracy", "model_sha256", "bytes_up", "bytes_down",
                "seconds_per_round", "run_dir"):  # fmt: skip
        assert key in summary
    assert 1 <= summary["rounds_to_target"] <= 4
    assert summary["status"] == "target reached"
    assert (tmp_path / "run/curve.png").stat().st_size > 5000
    assert "round 1/4" in result.stderr


def test_run_for_people(tmp_path):
    result = fedavg("run", *FAST, "--run-dir", tmp_path / "run", "--target", "0.99")
    assert result.returncode == 0
    assert "finished after 3 rounds" in result.stdout
    assert "rounds to 99.00%" in result.stdout
    assert "not reached" in result.stdout


def test_the_default_run_directory_is_under_runs(tmp_path):
    result = fedavg("run", *FAST, "--json", "--quiet", cwd=tmp_path)
    assert json.loads(result.stdout)["run_dir"].startswith("runs/mnist-2nn-")
    assert result.stderr == ""


def test_a_toml_plan_with_a_change(tmp_path):
    (tmp_path / "plan.toml").write_text('task = "mnist-2nn"\ndata = "mnist"\nC = 0.02\nrounds = 9\nB = inf\n')
    result = fedavg("run", tmp_path / "plan.toml", "--set", "rounds=2", "--json", "--run-dir", tmp_path / "run")
    assert json.loads(result.stdout)["rounds"] == 2


def test_dry_run_prints_the_plan_and_what_follows(tmp_path):
    result = fedavg("run", "mnist-cnn", "-C", "0.2", "-E", "5", "-B", "50", "--dry-run", "--json")
    report = json.loads(result.stdout)
    assert report["parameters"] == 1_663_370
    assert report["clients_per_round"] == 20
    assert report["u"] == 60
    assert report["bytes_up_per_round"] == 20 * 4 * 1_663_370
    assert report["estimated_s_per_round"] > 0
    two_vectors = json.loads(fedavg("run", "mnist-2nn", "--algorithm", "scaffold", "--dry-run", "--json").stdout)
    assert two_vectors["bytes_up_per_round"] == two_vectors["bytes_down_per_round"] == 10 * 4 * 2 * 199_210
    printed = fedavg("run", "mnist-2nn", "--dry-run", "-B", "inf").stdout
    (tmp_path / "again.toml").write_text(printed)
    again = fedavg("run", tmp_path / "again.toml", "--dry-run").stdout
    assert [line for line in again.splitlines() if "estimated" not in line] == [
        line for line in printed.splitlines() if "estimated" not in line
    ]
    assert "B = Infinity" not in printed


@pytest.mark.parametrize(
    ("preset", "count"), [("shakespeare-lstm", 866_578), ("cifar-cnn", 1_068_298), ("posts-lstm", 4_950_544)]
)
def test_a_dry_run_counts_parameters_without_the_data(tmp_path, preset, count):
    result = fedavg("run", preset, "--dry-run", "--json", "--data-dir", tmp_path)
    report = json.loads(result.stdout)
    assert report["parameters"] == count
    assert str(tmp_path) in report["data_missing"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cifar-cnn", "--data-dir", "."], "error: "),
        (["mnist-2nn", "-C", "1.5"], "error: C: got '1.5'; expected a number from 0 to 1"),
        (["mnist-2nn", "-B", "-1"], "error: B: got '-1'; expected a whole number of at least 1, or inf"),
        (["mnist-2nn", "-B", "0"], "error: B: got '0'; expected a whole number"),
        (["mnist-2nn", "--lr", "nan"], "error: lr: got 'nan'; expected a number above 0"),
        (["mnist-2nn", "--set", "colour=red"], "error: mnist-2nn: unknown option 'colour'; expected one of task"),
        (["mnist-2nn", "--set", "rounds"], "error: --set: got 'rounds'; expected KEY=VALUE"),
        (["mnist-2nn", "--rounds", "5", "--set", "rounds=9"], "error: rounds: got both '5' and '9'; expected it once"),
        (["mnist-2nn", "--set", "E=1", "--set", "E=2"], "error: E: got both '1' and '2'; expected it once"),
        (["mnist-2nn", "--set", "workers=2", "--fleet", "ray:auto"], "error: --workers: got 2 with --fleet ray:auto"),
        (["mnist-9nn"], "error: got 'mnist-9nn'; expected a preset (mnist-2nn,"),
        (["no.toml"], "error: cannot read the plan no.toml"),
        (["mnist-2nn", "--partition", "random"], "error: "),
        (["mnist-2nn", "--device", "cuda:9"], "error: device: got 'cuda:9'"),
        (["mnist-2nn", "--stages", "clip:-1"], "error: clip: the norm is -1.0; expected a finite number above 0"),
        (["mnist-2nn", "--algorithm", "sgd", "-E", "2"], "error: algorithm sgd: got E=2; expected E=1"),
    ],
)
def test_a_bad_plan_is_one_clear_message_and_exit_code_2(tmp_path, words, message):
    result = fedavg("run", *words, "--run-dir", tmp_path / "run", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith(message)
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "run").exists(), "nothing is left behind"


def test_a_diverged_run_ends_with_2_and_keeps_the_last_good_model(tmp_path):
    result = fedavg("run", "mnist-2nn", "-C", "0.02", "--lr", "1e20", "--rounds", "9", "--run-dir", tmp_path / "run")
    assert result.returncode == 2
    assert "error: round 1 diverged at lr=1e+20" in result.stderr
    assert f"the model of round 0 is kept in {tmp_path / 'run'}" in result.stderr
    assert "Traceback" not in result.stderr
    assert (tmp_path / "run/checkpoints/round-0000000.safetensors").exists()


def start(tmp_path, checkpoint_s=0.1):
    options = ["--checkpoint-s", str(checkpoint_s)]
    words = ["run", *LONG, *options, "--run-dir", tmp_path / "run"]
    return programs.start(*words, out=tmp_path / "out", err=tmp_path / "err", prepare=[os.setsid, programs.heed_ctrl_c])


def wait_for_rounds(tmp_path, count):
    deadline = time.monotonic() + 240
    metrics = tmp_path / "run/metrics.jsonl"
    while not metrics.exists() or metrics.read_bytes().count(b"\n") < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "run"
    result = fedavg("run", *LONG, "--run-dir", path, "--json")
    return json.loads(result.stdout)


def test_kill_9_and_resume_gives_the_uninterrupted_model(tmp_path, uninterrupted):
    process = start(tmp_path)
    wait_for_rounds(tmp_path, 7)
    process.kill()
    process.join()
    result = fedavg("resume", tmp_path / "run", "--workers", "1", "--json", "--no-plot")
    assert result.returncode == 0, result.stderr
    resumed = json.loads(result.stdout)
    assert resumed["model_sha256"] == uninterrupted["model_sha256"]
    assert resumed["rounds"] == ROUNDS
    assert "continuing after round" in result.stderr


def test_workers_do_not_outlive_a_killed_server(tmp_path):
    process = start(tmp_path)
    wait_for_rounds(tmp_path, 2)
    process.kill()
    process.join()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    pytest.fail("workers are still there a minute after the server was killed")


def test_ctrl_c_leaves_a_resumable_run(tmp_path, uninterrupted):
    process = start(tmp_path, checkpoint_s=1000)
    wait_for_rounds(tmp_path, 5)
    os.killpg(process.pid, signal.SIGINT)
    process.join(240)
    assert process.exitcode == 130
    stderr = (tmp_path / "err").read_text()
    assert f"continue with: fedavg resume {tmp_path / 'run'}" in stderr
    assert "Traceback" not in stderr
    resumed = json.loads(fedavg("resume", tmp_path / "run", "--json", "--no-plot").stdout)
    assert resumed["model_sha256"] == uninterrupted["model_sha256"]


def test_resume_of_nothing(tmp_path):
    result = fedavg("resume", tmp_path)
    assert result.returncode == 2
    assert "is not a run directory" in result.stderr


def test_a_full_disk_loses_nothing(small_disk, uninterrupted):
    """The disk fills up in the middle of the run; when there is room again, the run goes on to the same model."""
    filler = small_disk / "filler"
    filler.write_bytes(bytes(23_000_000))  # 2 MB are left
    result = fedavg("run", *LONG, "--checkpoint-s", "0", "--quiet", "--run-dir", small_disk / "run")
    assert result.returncode == 2
    assert result.stderr.startswith("error: cannot write")
    assert "No space left on device" in result.stderr
    filler.unlink()
    resumed = json.loads(fedavg("resume", small_disk / "run", "--json", "--no-plot").stdout)
    assert resumed["model_sha256"] == uninterrupted["model_sha256"]


def test_noise_from_a_seed_is_warned_of_in_the_first_line(tmp_path):
    private = ("--stages", "clip:0.3,weigh:equal,noise:1.0", "-C", "0.02", "--rounds", "1", "--no-plot", "--quiet")
    seeded = fedavg("run", "mnist-2nn", *private, "--run-dir", tmp_path / "seeded")
    assert seeded.stderr.splitlines()[0].startswith("warning: the noise follows from --seed")
    again = fedavg("resume", tmp_path / "seeded", "--no-plot", "--quiet")
    assert again.stderr.splitlines()[0].startswith("warning: the noise follows from --seed")
    drawn = fedavg("run", "mnist-2nn", *private, "--noise-source", "os", "--run-dir", tmp_path / "os")
    assert (drawn.returncode, drawn.stderr) == (0, "")
    assert fedavg("run", "mnist-2nn", *private[2:], "--run-dir", tmp_path / "plain").stderr == ""
