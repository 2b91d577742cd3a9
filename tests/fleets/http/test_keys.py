from dataclasses import replace
from hashlib import sha256

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from hypothesis import given
from hypothesis import strategies as st

from fedavg.fleets.http.protocol.keys import (
    WINDOW,
    ClientKey,
    KeyFileError,
    ReplayGuard,
    SignatureRefused,
    SignedFields,
    Signer,
    check_body,
    headers,
    matches,
    new_token,
    parse,
    token_hash,
    verify,
)

BODY = sha256(b"hello").hexdigest()
FIELDS = SignedFields("POST", "/v1/updates?round=3", "7", "epoch-1", 1, BODY)


def refused(reason, call, *arguments):
    with pytest.raises(SignatureRefused) as caught:
        call(*arguments)
    assert caught.value.reason == reason
    return caught.value


# ---------------------------------------------------------------------- key files


def test_a_key_comes_back_from_its_file(tmp_path):
    key = ClientKey.generate()
    key.save(tmp_path / "client.key")
    assert [path.name for path in tmp_path.iterdir()] == ["client.key"]
    assert (tmp_path / "client.key").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "client.key").read_bytes().startswith(b"-----BEGIN PRIVATE KEY-----")
    again = ClientKey.load(tmp_path / "client.key")
    assert again.public == key.public
    assert len(key.public) == 32
    assert again.sign(FIELDS) == key.sign(FIELDS)
    assert ClientKey.generate().public != key.public


def test_a_partial_file_of_a_crash_does_not_lend_its_mode(tmp_path):
    (tmp_path / "client.key.partial").write_bytes(b"")
    (tmp_path / "client.key.partial").chmod(0o644)
    ClientKey.generate().save(tmp_path / "client.key")
    assert (tmp_path / "client.key").stat().st_mode & 0o777 == 0o600


def test_a_key_is_not_written_over(tmp_path):
    key = ClientKey.generate()
    key.save(tmp_path / "client.key")
    with pytest.raises(KeyFileError, match="is there already"):
        ClientKey.generate().save(tmp_path / "client.key")
    assert ClientKey.load(tmp_path / "client.key").public == key.public


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_key_that_others_can_use_is_refused(tmp_path, mode):
    ClientKey.generate().save(tmp_path / "client.key")
    (tmp_path / "client.key").chmod(mode)
    with pytest.raises(KeyFileError, match=f"mode {mode:04o}.*expected 0600: run chmod 600"):
        ClientKey.load(tmp_path / "client.key")


def test_files_that_hold_no_key(tmp_path):
    path = tmp_path / "client.key"
    with pytest.raises(KeyFileError, match="cannot read the key .*No such file"):
        ClientKey.load(path)
    path.touch(0o600)
    path.write_bytes(b"no key")
    with pytest.raises(KeyFileError, match="expected PEM without a password"):
        ClientKey.load(path)
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    path.write_bytes(other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with pytest.raises(KeyFileError, match="another kind .*expected Ed25519"):
        ClientKey.load(path)


# ---------------------------------------------------------------------- signatures


def test_what_is_signed():
    assert FIELDS.text == b"fedavg-v1\nPOST\n/v1/updates?round=3\n7\nepoch-1\n1\n" + BODY.encode()
    private = ed25519.Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    signature = headers(ClientKey(private), FIELDS)["FedAvg-Signature"]
    # RFC 8032 signatures are deterministic: the bytes on the wire may never change within a version of the protocol.
    assert signature == ("6BScbZvxumMKPnj8DqiCnwn7yVbDBa+Dc2+xo5jOjUxX0gfw6a9eyqov9Cw8z7ZW+w1y2TjKZPyql5ZfJTf6CA==")


def test_a_request_goes_through_once():
    key, guard = ClientKey.generate(), ReplayGuard("epoch-1")
    sent = headers(key, FIELDS)
    assert {name: value for name, value in sent.items() if name != "FedAvg-Signature"} == {
        "FedAvg-Client": "7",
        "FedAvg-Epoch": "epoch-1",
        "FedAvg-Counter": "1",
        "FedAvg-Body-SHA256": BODY,
    }
    fields, signature = parse("POST", "/v1/updates?round=3", sent)
    assert fields == FIELDS
    verify(fields, signature, key.public, guard, 7)
    check_body(fields, BODY)
    assert refused("replayed", verify, fields, signature, key.public, guard, 7).highest == 1


@pytest.mark.parametrize(
    "change",
    [
        {"method": "GET"},
        {"path": "/v1/updates?round=4"},
        {"client": "8"},
        {"client": "enrol"},
        {"counter": 2},
        {"body_sha256": sha256(b"other").hexdigest()},
    ],
)
def test_every_field_is_bound(change):
    key, guard = ClientKey.generate(), ReplayGuard("epoch-1")
    refused("bad-signature", verify, replace(FIELDS, **change), key.sign(FIELDS), key.public, guard, 7)
    verify(FIELDS, key.sign(FIELDS), key.public, guard, 7)  # the refused one used no counter up


def test_an_old_epoch_is_named_as_such():
    key = ClientKey.generate()
    refused("stale-epoch", verify, FIELDS, key.sign(FIELDS), key.public, ReplayGuard("epoch-2"), 7)
    forged = replace(FIELDS, epoch="epoch-2")
    refused("bad-signature", verify, forged, key.sign(FIELDS), key.public, ReplayGuard("epoch-2"), 7)
    assert ReplayGuard().epoch != ReplayGuard().epoch


def test_another_key_is_refused():
    key, guard = ClientKey.generate(), ReplayGuard("epoch-1")
    refused("bad-signature", verify, FIELDS, key.sign(FIELDS), ClientKey.generate().public, guard, 7)
    refused("bad-signature", verify, FIELDS, key.sign(FIELDS), b"short", guard, 7)
    refused("malformed", verify, FIELDS, "not base64!", key.public, guard, 7)
    refused("malformed", verify, FIELDS, "é", key.public, guard, 7)
    refused("bad-signature", verify, FIELDS, "", key.public, guard, 7)


def test_another_body_is_refused():
    refused("body-mismatch", check_body, FIELDS, sha256(b"hallo").hexdigest())


def test_a_line_can_not_be_smuggled_into_a_field():
    refused("malformed", lambda: replace(FIELDS, path="/a\n7").text)
    refused("malformed", lambda: replace(FIELDS, path="/ä").text)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FedAvg-Client", "-1"),
        ("FedAvg-Client", "07"),
        ("FedAvg-Client", "٣"),
        ("FedAvg-Client", "7\n"),
        ("FedAvg-Client", "9" * 5000),
        ("FedAvg-Counter", "0"),
        ("FedAvg-Counter", "1e3"),
        ("FedAvg-Counter", str(2**63)),
        ("FedAvg-Body-SHA256", BODY.upper()),
        ("FedAvg-Body-SHA256", BODY[1:]),
        ("FedAvg-Epoch", None),
        ("FedAvg-Signature", None),
    ],
)
def test_malformed_headers(name, value):
    sent = headers(ClientKey.generate(), FIELDS)
    sent.pop(name)
    if value is not None:
        sent[name] = value
    refused("malformed", parse, "POST", "/", sent)


@given(st.dictionaries(st.sampled_from(list(headers(ClientKey.generate(), FIELDS))), st.text()))
def test_no_header_makes_it_fail_in_another_way(sent):
    key = ClientKey.generate()
    with pytest.raises(SignatureRefused):
        verify(*parse("POST", "/", headers(key, FIELDS) | sent), key.public, ReplayGuard("epoch-1"), 7)


# ---------------------------------------------------------------------- the client's side


def test_a_signer_counts_and_follows_the_server():
    key, guard = ClientKey.generate(), ReplayGuard("epoch-1")

    def send(signer):
        verify(*parse("GET", "/", signer.headers("GET", "/", b"")), key.public, guard, 7)

    signer = Signer(key, 7, "epoch-0")
    refused("stale-epoch", send, signer)
    signer.resync("epoch-1")
    for _ in range(100):
        send(signer)
    restarted = Signer(key, 7, "epoch-1")
    refusal = refused("too-old", send, restarted)
    assert refusal.highest == 100
    restarted.resync("epoch-1", refusal.highest)
    send(restarted)
    signer.resync("epoch-1", 3)  # an answer that comes late does not turn the count back
    refused("replayed", send, signer)


def test_a_signer_takes_a_body_or_its_digest():
    signer = Signer(ClientKey.generate(), None, "e")
    assert signer.headers("PUT", "/", b"hello")["FedAvg-Body-SHA256"] == BODY
    assert signer.headers("PUT", "/", BODY)["FedAvg-Body-SHA256"] == BODY
    assert signer.headers("PUT", "/", BODY)["FedAvg-Client"] == "enrol"


def test_strangers_leave_no_trace():
    guard = ReplayGuard()
    for _ in range(10):
        key = ClientKey.generate()
        request = Signer(key, None, guard.epoch).headers("POST", "/", b"")
        for _ in range(2):
            verify(*parse("POST", "/", request), key.public, guard)
    assert guard._seen == {}


# ---------------------------------------------------------------------- replay


def test_the_window_by_hand():
    guard = ReplayGuard("e")
    for counter in (1, 3, 2, 66):
        guard.check(0, counter)
    for used in (3, 66):
        assert refused("replayed", guard.check, 0, used).highest == 66
    assert refused("too-old", guard.check, 0, 2).highest == 66  # 64 behind
    guard.check(0, 4)
    guard.check(1, 1)  # another client has a window of its own
    guard.check(0, 2**63 - 1)
    refused("too-old", guard.check, 0, 67)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 200)), max_size=200))
def test_the_window_against_a_set(requests):
    """Taken is what was not taken before and is less than 64 behind the highest that was taken."""
    guard = ReplayGuard("e")
    taken: dict[int, set[int]] = {0: set(), 1: set(), 2: set()}
    for client, counter in requests:
        seen = taken[client]
        if counter <= max(seen, default=0) - WINDOW:
            assert refused("too-old", guard.check, client, counter).highest == max(seen)
        elif counter in seen:
            assert refused("replayed", guard.check, client, counter).highest == max(seen)
        else:
            guard.check(client, counter)
            seen.add(counter)


@given(st.lists(st.integers(1, 2**63 - 1), min_size=1, max_size=300))
def test_memory_is_two_small_integers_a_client(counters):
    guard = ReplayGuard("e")
    for counter in counters:
        try:
            guard.check(0, counter)
        except SignatureRefused:
            continue
    highest, bitmap = guard._seen[0]
    assert highest == max(counters)
    assert bitmap < 2**WINDOW


# ---------------------------------------------------------------------- tokens


def test_tokens():
    token = new_token()
    assert token.startswith("fedavg_join_")
    assert len(token) == len("fedavg_join_") + 43  # 256 bits in base64
    assert new_token() != token
    assert token_hash(token) == sha256(token.encode()).digest()
    assert matches(token, token_hash(token))
    assert not matches(new_token(), token_hash(token))
    assert not matches("\ud800", token_hash(token))
