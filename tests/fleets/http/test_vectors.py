"""The test vectors beside docs/protocol.md are what the code does; as a program this file makes them.

Another implementation reads the same files. What may differ in its last bits there (products of matrices, logarithms)
is compared to a tolerance; everything else byte by byte.
"""

import json
import shutil
import subprocess
import sys
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from lines import LINE, POINTS

from fedavg import Plan, run
from fedavg.algorithms import ALGORITHMS
from fedavg.client_path import ClientPath
from fedavg.codecs import CODECS, make_codec
from fedavg.codecs.bits import words
from fedavg.fleets.http.protocol import changes, sums
from fedavg.fleets.http.protocol.keys import ClientKey, SignedFields, headers
from fedavg.fleets.http.protocol.messages import (
    MESSAGES,
    DoneAnswer,
    Eligibility,
    Enrolled,
    EnrolRequest,
    Extension,
    Holding,
    JudgeOffer,
    MaskAnswer,
    NewRole,
    NewRun,
    NewToken,
    PlanAnswer,
    PollAnswer,
    PollRequest,
    Problem,
    ReportRequest,
    Rollback,
    Selection,
    Taken,
    UpdateAnswer,
    WaitAnswer,
    WorkOffer,
)
from fedavg.fleets.http.protocol.strict import dump
from fedavg.fleets.http.protocol.wire import (
    Expected,
    UpdateFault,
    UpdateHeader,
    UpdateRefused,
    decode_update,
    encode_update,
)
from fedavg.plan.plan import _counted, _plain, default_of
from fedavg.setup import simulation
from fleet_peers import HOST, fleet_plan, serving

FOLDER = Path(__file__).parents[3] / "docs" / "protocol" / "vectors"
PLAN, MODEL = "0123456789abcdef", "ab" * 32
#: Written out by hand: small and large, both signs, a zero, ties of magnitude.
VECTOR = np.array([0.5, -0.25, 0.0, 3.0, -3.0, 0.125, 1e-3, -0.75, 2.0, -1.5, 0.0625, 0.3], np.float32)
LAYERS = ((2, 4), (4,))


def hexed(numbers: np.ndarray) -> str:
    """float32, little-endian, as hexadecimal digits."""
    return np.asarray(numbers, "<f4").tobytes().hex()


# What each file holds


def signatures() -> dict:
    key = ClientKey(Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
    report = dump(ReportRequest(7, 1, "declined", "many-epochs", None, ""))
    requests = [
        ("POST", "/v1/report", "42", "e-1", 9, report),
        ("POST", "/v1/enrol", "enrol", "none-yet", 1, b"{}"),
        ("GET", "/v1/models/latest", "0", "AbC_-123", 2**63 - 1, b""),
    ]
    made = []
    for method, path, client, epoch, counter, body in requests:
        fields = SignedFields(method, path, client, epoch, counter, sha256(body).hexdigest())
        made.append({
            "method": method, "path": path, "body": body.decode(), "signed_text": fields.text.decode(),
            "headers": headers(key, fields),
        })  # fmt: skip
    return {
        "secret_key_hex": bytes(range(32)).hex(),
        "public_key_base64": b64encode(key.public).decode(),
        "requests": made,
    }


def expected() -> Expected:
    bounds = {"train_loss": (-1000.0, 1000.0)}
    return Expected(PLAN, 7, 1, MODEL, make_codec("float32"), 2, 600.0, 10.0, frozenset({"train_loss"}), bounds)


def frames() -> dict:
    """Frames that are taken or refused, with the reason."""
    header = UpdateHeader(PLAN, 7, 1, MODEL, "float32", 2, 600.0, {"train_loss": 0.25})
    payload = np.array([1, -2], "<f4").tobytes()
    good = encode_update(header, payload)
    loose = json.dumps(json.loads(good[9:-8]) | {"weight": 1}, indent=1).encode()
    made = {
        "as the reference writes it": good,
        "white space, another order of fields, a whole number": b"FAVG\x01" + _length(loose) + loose + payload,
        "no bytes": b"",
        "the prefix is cut": good[:8],
        "the header is cut": good[:40],
        "the payload is cut": good[:-1],
        "another magic": b"X" + good[1:],
        "another version": good[:4] + b"\x02" + good[5:],
        "a header too large": good[:5] + _length(b" " * 16_385) + good[9:],
        "a field twice": _with(good, b'{"plan"', b'{"numbers":2,"plan"'),
        "a field too many": _with(good, b'{"plan"', b'{"more":2,"plan"'),
        "true for a number": _with(good, b'"numbers":2', b'"numbers":true'),
        "no weight": _with(good, b'"weight":600.0', b'"weight":0.0'),
        "more weight than examples": _with(good, b'"weight":600.0', b'"weight":601.0'),
        "no metrics": _with(good, b'{"train_loss":0.25}', b"{}"),
        "a loss that cannot be": _with(good, b'"train_loss":0.25', b'"train_loss":1e6'),
        "another plan": _with(good, PLAN.encode(), b"f" * 16),
        "another attempt": _with(good, b'"attempt":1', b'"attempt":2'),
        "another model": _with(good, b"abab", b"cdcd"),
        "another codec": _with(good, b"float32", b"float16"),
        "another number of numbers": _with(good, b'"numbers":2', b'"numbers":3'),
        "bytes after the payload": good + b"\0",
        "a flipped bit": good[:-1] + bytes([good[-1] ^ 1]),
        "NaN": encode_update(header, np.array([1, np.nan], "<f4").tobytes()),
        "too long a vector": encode_update(header, np.array([1, -20], "<f4").tobytes()),
    }
    return {
        "expected": {
            "plan": PLAN, "round": 7, "attempt": 1, "model": MODEL, "codec": "float32", "numbers": 2,
            "max_weight": 600.0, "max_norm": 10.0, "metrics": ["train_loss"], "train_loss": [-1000.0, 1000.0],
        },
        "frames": [{"name": name, "frame_hex": frame.hex(), **_verdict(frame)} for name, frame in made.items()],
    }  # fmt: skip


def _length(data: bytes) -> bytes:
    return len(data).to_bytes(4, "little")


def _with(frame: bytes, old: bytes, new: bytes) -> bytes:
    """A frame whose header says something else."""
    length = int.from_bytes(frame[5:9], "little")
    header = frame[9 : 9 + length].replace(old, new, 1)
    assert header != frame[9 : 9 + length]
    return frame[:5] + _length(header) + header + frame[9 + length :]


def _verdict(frame: bytes) -> dict:
    try:
        update = decode_update(frame, expected())
    except UpdateRefused as error:
        return {"refused": str(error.reason)}
    return {"vector": update.vector.tolist(), "weight": update.weight, "metrics": update.metrics}


#: Of every codec, one at least; those with settings also with others.
TEXTS = (
    "float32", "float16", "bfloat16", "topk:0.25", "stc:0.5", "mask:0.5", "mask:0.5:false", "quantise:8", "quantise:1",
    "quantise:4:false", "lowrank:1", "lowrank:1:false", "entropy:float32", "entropy:quantise:2",
)  # fmt: skip


def codecs() -> dict:
    made = []
    for text in TEXTS:
        codec = make_codec(text).bind(lambda: LAYERS)
        frame = codec.encode(torch.from_numpy(VECTOR), np.random.default_rng(5))
        decoded = codec.decode(frame, len(VECTOR)).numpy()
        made.append({
            "codec": text, "frame_hex": frame.hex(), "decoded_hex": hexed(decoded),
            "max_bytes": codec.max_bytes(len(VECTOR)), "keeps_residual": codec.keeps_residual,
        })  # fmt: skip
    two = [make_codec("stc:0.5").encode(torch.from_numpy(v), np.random.default_rng(0)) for v in (VECTOR, -VECTOR)]
    found = np.array([1 / 3, -2e9 / 7, 1e-12])
    return {
        "vector_hex": hexed(VECTOR), "numbers": len(VECTOR), "layers": [list(shape) for shape in LAYERS],
        "codecs": made,
        "words": {"seed_hex": bytes(range(8)).hex(), "uint32": words(bytes(range(8)), 6).tolist()},
        "changes": {
            "codec": "stc:0.5", "frames_hex": [frame.hex() for frame in two],
            "stream_hex": bytes(changes.KeptChanges(two).last(2) or b"").hex(),
        },
        "sums": {"float64": found.tolist(), "vector_hex": hexed(sums.split(found).numpy())},
    }  # fmt: skip


PLANS = (
    {},
    {"task": "mnist-cnn", "C": 0.1, "E": 5, "B": 10, "lr": 0.05, "seed": 3},
    {"task": "my_package.tasks:TASK", "data": "my_package.data:DATA", "clients": 8, "B": "inf", "holdout": 0.2},
    {"algorithm": "fedprox:mu=0.1", "codec": "stc:0.01", "stages": ("clip:1.0", "weigh:equal"), "workers": 3},
)


def plans() -> dict:
    made = []
    for values in PLANS:
        plan = Plan(**values)  # type: ignore[arg-type]
        chosen = {name: _counted(getattr(plan, name)) for name in plan.to_dict(runtime=False)}
        chosen = {name: value for name, value in chosen.items() if value != _plain(default_of(name))}
        text = json.dumps(chosen, sort_keys=True)
        made.append({"options": values, "counted_text": text, "plan_digest": plan.digest})
    return {"plans": made}


START = (0.5, -0.25)
C = (0.1, -0.2)


def algorithms() -> dict:
    """What each algorithm sends and is sent, and the update of client 0 in round 1 from fixed weights."""
    made = {}
    for name, kind in ALGORITHMS.items():
        if kind.pools_data:  # a baseline that no server runs
            continue
        text = {"adaptive": "adaptive:600", "fedprox": "fedprox:0.1", "feddyn": "feddyn:0.1"}.get(name, name)
        full = {"C": 1, "B": "inf", "E": 1 if name in ("fedsgd", "adaptive") else 2}
        plan = Plan(task=LINE, data=POINTS, algorithm=text, lr=0.1, rounds=1, workers=1, evaluate="none", **full)
        setup, data = simulation(plan)
        trainer = setup.new_trainer(data.client(0))
        state = setup.algorithm.initial(torch.tensor(START))
        work = setup.algorithm.adjust(state, plan.work(1))
        shared = torch.tensor(START if setup.algorithm.vectors_down == 1 else (*START, *C))
        path = ClientPath(setup, trainer, 0, data.client(0), work, _Nothing())
        with path.training() as client:
            update = setup.algorithm.client_update(client, shared, work)
        message = path.message(update)
        made[name] = {
            "algorithm": text, "epochs": work.epochs, "batch": None, "lr": work.lr, "settings": dict(work.settings),
            "vectors_down": setup.algorithm.vectors_down, "vectors_up": setup.algorithm.vectors_up,
            "keeps_state": setup.keeps_state, "shared": shared.tolist(),
            "update": np.frombuffer(message.frame, "<f4").tolist(), "weight": message.weight,
            "metrics": message.metrics,
        }  # fmt: skip
    return {
        "model": "y = w x + b, its numbers (w, b); the loss is the mean of (output - y)^2",
        "examples": {"x": [1.0, 2.0], "y": [2.0, 3.0]},
        "algorithms": made,
    }


class _Nothing:
    """Clients that keep nothing: it is their first round."""

    def load(self, k: int, before: int) -> dict[str, torch.Tensor]:
        return {}

    def save(self, k: int, round: int, state: dict[str, torch.Tensor]) -> None:
        pass


def messages() -> dict:
    """One of each message, as the reference writes it."""
    made = [
        EnrolRequest("invite-1", b64encode(bytes(32)).decode(), 600, "Büro 3", None, ["mnist-2nn"], 2),
        Enrolled(7, "e-1", 1, 'task = "mnist-2nn"\n', PLAN),
        PollRequest(Eligibility(True, False, True), 600, Holding(3, 0, MODEL), Taken(1, PLAN), 25.0),
        PlanAnswer(2, 'task = "mnist-2nn"\n', PLAN),
        WorkOffer(3, 0, MODEL, 199_210, 120.0, 5, None, 0.1, {"tau": 4.0}, None, None, 10, 3, True),
        JudgeOffer(3, 1 << 30, MODEL, 199_210, 120.0, None, None, 10),
        MaskAnswer(3, 0, "0f" * 16, 2),
        WaitAnswer(1.5, 2, False),
        DoneAnswer(100, MODEL, False, None),
        UpdateAnswer(True, False),
        ReportRequest(3, 0, "failed", "out-of-time", None, "the deadline came first"),
        NewToken(20, "the lab", None, 24.0),
        NewRole("submitter", "alice", None),
        NewRun('task = "mnist-2nn"\n', "weekly", None),
        Extension(200, 0.01, None),
        Rollback(3),
        Selection(None, "0f" * 8, "10.0.0.0/8", 2.0, None),
        Problem("stale-epoch", "sign again", "e-2"),
    ]
    return {"messages": [{"kind": type(each).__name__, "text": dump(each).decode()} for each in made]}


FILES = {
    "signatures": signatures, "frames": frames, "codecs": codecs, "plans": plans, "algorithms": algorithms,
    "messages": messages,
}  # fmt: skip


def stored(name: str) -> dict:
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


# The tests


@pytest.mark.parametrize("name", ["signatures", "frames", "plans", "messages"])
def test_the_files_are_what_the_code_does(name):
    assert json.loads(json.dumps(FILES[name]())) == stored(name)


def test_every_message_has_an_example():
    shown = {message["kind"] for message in stored("messages")["messages"]}
    answers = {kind.__name__ for kind in PollAnswer.__subclasses__()}
    assert shown == {kind.__name__ for kind in MESSAGES} - {"PollAnswer"} | answers


def test_every_reason_of_a_refused_frame_has_an_example():
    shown = {frame["refused"] for frame in stored("frames")["frames"] if "refused" in frame}
    # Of the others, one needs a codec that can fail, and one the sum of a whole round.
    assert shown == {str(reason) for reason in UpdateFault} - {"bad-payload", "share-exceeded"}


def test_every_codec_reads_its_frame_and_those_that_draw_nothing_write_it_again():
    file = stored("codecs")
    assert {text.partition(":")[0] for text in TEXTS} == set(CODECS)
    for case in file["codecs"]:
        codec = make_codec(case["codec"]).bind(lambda: LAYERS)
        decoded = codec.decode(bytes.fromhex(case["frame_hex"]), file["numbers"]).numpy()
        wanted = np.frombuffer(bytes.fromhex(case["decoded_hex"]), "<f4")
        if case["codec"].startswith("lowrank"):  # by a QR decomposition, which libraries round differently
            assert np.allclose(decoded, wanted, atol=1e-5)
        else:
            assert np.array_equal(decoded, wanted), case["codec"]
        if case["codec"].partition(":")[0] in ("float32", "float16", "bfloat16", "topk", "stc"):
            vector = torch.from_numpy(np.frombuffer(bytes.fromhex(file["vector_hex"]), "<f4").copy())
            assert codec.encode(vector, np.random.default_rng(1)).hex() == case["frame_hex"]
        assert codec.max_bytes(file["numbers"]) == case["max_bytes"]
        assert codec.keeps_residual == case["keeps_residual"]
    made = codecs()
    for part in ("words", "changes", "sums"):
        assert json.loads(json.dumps(made[part])) == file[part]


def test_every_algorithm_gives_the_update_that_its_file_says():
    made, file = algorithms(), stored("algorithms")
    assert list(made["algorithms"]) == list(file["algorithms"])
    for name, case in made["algorithms"].items():
        told = file["algorithms"][name]
        numbers = ("update", "metrics", "shared")
        assert {k: v for k, v in case.items() if k not in numbers} == {
            k: v for k, v in told.items() if k not in numbers
        }
        assert case["update"] == pytest.approx(told["update"], abs=1e-6)
        assert case["metrics"] == pytest.approx(told["metrics"], abs=1e-5)


def test_fedavg_on_a_line_by_hand():
    """Residuals at (0.5, -0.25) are -1.75 and -2.25: the gradient is (-6.25, -4), the loss 4.0625. The second step is
    from (1.125, 0.15): residuals -0.725 and -0.6, gradient (-1.925, -1.325), loss 0.4428125."""
    case = stored("algorithms")["algorithms"]["fedavg"]
    assert case["update"] == pytest.approx([0.625 + 0.1925, 0.4 + 0.1325], abs=1e-6)
    assert case["metrics"] == pytest.approx({"train_loss": 0.4428125}, abs=1e-6)


NODE = shutil.which("node")
CLIENT = Path(__file__).parents[3] / "examples" / "node-client"


@pytest.mark.skipif(NODE is None, reason="Node is not installed")
def test_a_client_in_another_language_agrees_with_the_vectors():
    ended = subprocess.run([NODE, CLIENT / "vectors.mjs", FOLDER], capture_output=True, text=True)
    assert ended.stdout == "ok\n", ended.stderr


@pytest.mark.skipif(NODE is None, reason="Node is not installed")
def test_a_client_in_another_language_trains_to_the_end(tmp_path):
    """It alone is the fleet: batches of all examples have no order, so the model is the simulator's, to rounding."""
    plan = fleet_plan(task="lines:LINE", data="lines:ALONE", rounds=3, clients=1, C=1.0, E=2, B="inf", lr=0.1)
    (tmp_path / "own.json").write_text(json.dumps({"x": [1.0, 2.0], "y": [2.0, 3.0]}))
    with serving(tmp_path / "run", plan, linger_s=60) as server:
        (tmp_path / "token").write_text(server.join_token)
        command = [NODE, CLIENT / "client.mjs", f"http://{HOST}:{server.port}", tmp_path / "state", "lines:LINE"]
        ended = subprocess.run(
            [*command, tmp_path / "own.json", tmp_path / "token"], capture_output=True, text=True, timeout=300
        )
    assert ended.returncode == 0, ended.stderr
    alike = run(replace(plan, workers=1)).model
    assert json.loads(ended.stdout) == pytest.approx([alike.weight.item(), alike.bias.item()], abs=1e-5)


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, make in FILES.items():
        text = json.dumps(make(), indent=1, ensure_ascii=False)
        (FOLDER / f"{name}.json").write_text(text + "\n", encoding="utf-8")
        sys.stdout.write(f"{FOLDER / name}.json\n")
