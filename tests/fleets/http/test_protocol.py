"""docs/protocol.md says what the code does: each field, reason, bound and example."""

import json
import re
from base64 import b64decode, b64encode
from dataclasses import fields
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fedavg.codecs import CODECS, make_codec
from fedavg.fleets.http.protocol import messages, strict
from fedavg.fleets.http.protocol.messages import MAX_MESSAGE, PROBLEMS, REPORTS, ReportRequest
from fedavg.fleets.http.protocol.strict import MAX_DEPTH, dump
from fedavg.fleets.http.protocol.wire import (
    MAX_HEADER,
    Expected,
    SealedHeader,
    UpdateFault,
    UpdateHeader,
    decode_update,
    encode_update,
)
from fedavg.fleets.http.server.guards import Guards
from fedavg.fleets.http.server.hub import Hub
from fedavg.plan.plan import option_names

DOCS = Path(__file__).parents[3] / "docs"
TEXT = (DOCS / "protocol.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^##+ (.+?)\n(.*?)(?=^##|\Z)", TEXT, re.MULTILINE | re.DOTALL))
TABLES = {
    kind.__name__: kind
    for kind in vars(messages).values()
    if isinstance(kind, type) and hasattr(kind, "__dataclass_fields__") and not issubclass(kind, strict.Rule)
} | {"Header": SealedHeader}


def rows(section: str) -> list[list[str]]:
    lines = [line for line in SECTIONS[section].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def bounds(rule: strict.Rule) -> list[float]:
    match rule:
        case strict.Nullable(inner):
            return bounds(inner)
        case strict.ListOf(inner, most):
            return [most, *bounds(inner)]
        case strict.TableOf(name, value, most):
            return [most, name.low, name.high, value.high]
        case strict.Text(_, low, high) if low < high:
            return [low, high]
        case strict.Number(low, high) | strict.Integer(low, high):
            return [low, high]
    return []


def numbers(text: str) -> set[float]:
    """The numbers in a cell; 2^31 - 1 is one."""
    text = text.replace(",", "")
    powers = re.findall(r"(\d+)\^(\d+)( - 1)?", text)
    plain = re.sub(r"\d+\^\d+( - 1)?", "", text)
    return {float(a) ** int(b) - bool(less) for a, b, less in powers} | {float(n) for n in re.findall(r"\d+", plain)}


@pytest.mark.parametrize("section", TABLES)
def test_each_message_has_its_fields_with_their_bounds_and_meanings(section):
    table = {row[0].strip("`"): row[1:] for row in rows(section)}
    specs = {spec.name: spec.metadata for spec in fields(TABLES[section])}
    assert list(table) == list(specs)
    for name, (allowed, meaning) in table.items():
        assert meaning == specs[name]["help"]
        assert set(bounds(specs[name]["rule"])) <= numbers(allowed), name
        assert isinstance(specs[name]["rule"], strict.Nullable) == allowed.endswith("or null")


def test_the_reasons_are_those_of_the_code_in_the_same_order():
    assert [row[0].strip("`") for row in rows("Why a frame is refused")] == [str(reason) for reason in UpdateFault]


def test_the_problems_are_those_of_the_code_with_their_status():
    told = {error: int(row[0]) for row in rows("Problems") for error in re.findall("`([a-z-]+)`", row[1])}
    assert told == PROBLEMS


def test_the_reports_are_those_of_the_code_with_their_meanings():
    assert {row[0].strip("`"): row[1] for row in rows("Why a client does not take part")} == REPORTS


def test_the_limits_are_those_of_the_code():
    assert f"{MAX_MESSAGE:,} bytes of JSON" in TEXT
    assert f"9 + {MAX_HEADER:,} bytes" in TEXT
    assert f"at most {MAX_HEADER:,}" in TEXT
    assert f"nesting deeper than {MAX_DEPTH}" in TEXT


def test_the_example_of_a_signature_can_be_made_again():
    signed, signature = (block.strip() for block in re.findall(r"```\n(.*?)```", SECTIONS["Signing"], re.DOTALL))
    body = dump(ReportRequest(7, 1, "declined", "many-epochs", None, ""))
    assert f"`{body.decode()}`" in SECTIONS["Signing"]
    assert signed.splitlines()[-1] == sha256(body).hexdigest()
    key = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    public = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    assert f"`{b64encode(public).decode()}`" in SECTIONS["Signing"]
    assert key.sign(signed.encode()) == b64decode(signature)


def test_the_example_of_a_frame_is_one():
    section = SECTIONS["Header"]
    (header,) = re.findall(r"```\n(.*?)\n```", section, re.DOTALL)
    prefix, payload = (bytes.fromhex(digits) for digits in re.findall(r"`((?:[0-9a-f]{2} )+[0-9a-f]{2})`", section))
    frame = prefix + header.encode() + payload
    plan, model = "0123456789abcdef", "ab" * 32
    expected = Expected(plan, 7, 1, model, make_codec("float32"), 2, 600.0, None, frozenset({"train_loss"}))
    assert decode_update(frame, expected).vector.tolist() == [1, -2]
    said = UpdateHeader(plan, 7, 1, model, "float32", 2, 600.0, {"train_loss": 0.25})
    assert frame == encode_update(said, np.array([1, -2], "<f4").tobytes())
    assert f"{len(frame)} bytes" in section


def test_the_fields_of_a_status_are_there():
    """A server may say more than the page promises, not less."""
    table = rows("What a server says of itself")
    told = {name for row in table for name in re.findall("`([a-z_]+)`", row[0])}
    assert told <= set(Hub(Guards()).status())
    inside = next(row[1] for row in table if row[0] == "`round`")
    assert set(re.findall("`([a-z_]+)`", inside)) == {
        "round", "attempt", "phase", "invited", "accepted", "failed", "goal", "seconds_left",
    }  # fmt: skip


def test_the_algorithms_are_those_of_the_code_with_what_they_send():
    vectors = json.loads((DOCS / "protocol" / "vectors" / "algorithms.json").read_text())["algorithms"]
    told = {}
    for names, settings, metrics, down, up, _ in rows("Algorithms"):
        numbers = (
            set(re.findall(r"`(\w+)`", settings)),
            set(re.findall(r"`(\w+)`", metrics)),
            int(down[0]),
            int(up[0]),
        )
        told |= dict.fromkeys(re.findall(r"`(\w+)`", names), numbers)
    assert told == {
        name: (set(case["settings"]), set(case["metrics"]), case["vectors_down"], case["vectors_up"])
        for name, case in vectors.items()
    }


def test_each_codec_has_its_bytes():
    assert {row[0].strip("`").partition(":")[0] for row in rows("Codecs")} == set(CODECS)


def test_the_options_that_bind_a_client_are_options_and_the_others_bind_nobody():
    told = {name for row in rows("The plan") for name in re.findall(r"`(\w+)`", row[0])}
    servers = {
        "changes", "C", "target", "patience", "eval_clients", "eval_every", "eval_train", "sampling", "world",
        "closing", "reducer", "pre", "attack", "attackers", "engine", "device", "uplink",
    }  # fmt: skip
    runtime = {"workers", "data_dir", "worker_timeout", "start_method", "checkpoint_s"}
    assert told | servers | runtime >= set(option_names())
    assert told <= set(option_names())
    assert all(f"`{name}`" in SECTIONS["The plan"] for name in runtime)
