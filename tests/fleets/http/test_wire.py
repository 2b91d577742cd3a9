"""The update frame: by hand, reason by reason, and against a hundred thousand malformed frames."""

import gc
import json
import struct
import sys
import tracemalloc
from collections import Counter
from hashlib import sha256
from time import process_time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedavg.codecs import CODECS, Codec, make_codec
from fedavg.errors import DataError, FedAvgError
from fedavg.fleets.http.protocol.strict import MessageRefused
from fedavg.fleets.http.protocol.wire import (
    MAX_HEADER,
    Expected,
    UpdateFault,
    UpdateHeader,
    UpdateRefused,
    decode_update,
    encode_update,
    max_frame_bytes,
)

PLAN, MODEL = "0123456789abcdef", "ab" * 32
VALUES = np.array([1.0, -2.0, 0.5, 0.0], "<f4")
PAYLOAD = VALUES.tobytes()
HEADER = {
    "plan": PLAN,
    "round": 7,
    "attempt": 1,
    "model": MODEL,
    "codec": "float32",
    "numbers": 4,
    "weight": 600.0,
    "metrics": {"train_loss": 0.25},
}
EXPECTED = Expected(
    plan=PLAN,
    round=7,
    attempt=1,
    model=MODEL,
    codec=make_codec("float32"),
    numbers=4,
    max_weight=1000.0,
    max_norm=10.0,
    metrics=frozenset({"train_loss"}),
)


def sealed(payload: bytes = PAYLOAD, **changes: object) -> dict[str, object]:
    return HEADER | {"payload_bytes": len(payload), "payload_sha256": sha256(payload).hexdigest()} | changes


def framed(text: bytes, payload: bytes = PAYLOAD) -> bytes:
    return b"FAVG" + struct.pack("<BI", 1, len(text)) + text + payload


def hand_made(payload: bytes = PAYLOAD, **changes: object) -> bytes:
    return framed(json.dumps(sealed(payload, **changes)).encode(), payload)


def with_text(field: str, text: str) -> bytes:
    """A frame in which one field of the header is the given text, JSON or not."""
    others = json.dumps({name: value for name, value in sealed().items() if name != field})
    return framed(f'{others[:-1]}, "{field}": {text}}}'.encode())


def floats(*values: float) -> bytes:
    return np.array(values, "<f4").tobytes()


def reason(frame: bytes | memoryview, expected: Expected = EXPECTED) -> UpdateFault:
    with pytest.raises(UpdateRefused) as caught:
        decode_update(frame, expected)
    assert isinstance(caught.value, FedAvgError)
    assert str(caught.value).startswith(f"{caught.value.reason}: ")
    return caught.value.reason


def changed(expected: Expected, **changes: object) -> Expected:
    return Expected(**(vars(expected) | changes))


def test_a_frame_by_hand_is_decoded():
    for frame in (hand_made(), memoryview(hand_made()), bytearray(hand_made())):
        decoded = decode_update(frame, EXPECTED)
        assert decoded.vector.tolist() == [1.0, -2.0, 0.5, 0.0]
        assert decoded.vector.dtype == torch.float32
        assert (decoded.weight, decoded.metrics) == (600.0, {"train_loss": 0.25})


def test_the_bytes_of_a_frame():
    frame = encode_update(UpdateHeader(**HEADER), PAYLOAD)
    assert frame[:5] == b"FAVG\x01"
    (length,) = struct.unpack("<I", frame[5:9])
    assert json.loads(frame[9 : 9 + length]) == sealed()
    assert frame[9 + length :] == PAYLOAD


def test_the_vector_shares_no_memory_with_the_frame():
    frame = bytearray(hand_made())
    vector = decode_update(memoryview(frame), EXPECTED).vector
    frame[:] = bytes(len(frame))
    assert vector.tolist() == [1.0, -2.0, 0.5, 0.0]


def test_whole_numbers_may_stand_for_numbers():
    decoded = decode_update(hand_made(weight=600, metrics={"train_loss": 1}), EXPECTED)
    assert (decoded.weight, decoded.metrics) == (600.0, {"train_loss": 1.0})
    assert type(decoded.weight) is float


REASONS = {
    "empty": (b"", UpdateFault.TRUNCATED),
    "half a prefix": (hand_made()[:8], UpdateFault.TRUNCATED),
    "half a header": (hand_made()[:40], UpdateFault.TRUNCATED),
    "half a payload": (hand_made()[:-1], UpdateFault.TRUNCATED),
    "magic": (b"favg" + hand_made()[4:], UpdateFault.BAD_MAGIC),
    "version 0": (b"FAVG\0" + hand_made()[5:], UpdateFault.BAD_VERSION),
    "version 2": (b"FAVG\2" + hand_made()[5:], UpdateFault.BAD_VERSION),
    "header length": (b"FAVG\1\xff\xff\xff\xff" + hand_made()[9:], UpdateFault.HEADER_TOO_LARGE),
    "a large header that is there": (framed(b" " * MAX_HEADER + b"{}"), UpdateFault.HEADER_TOO_LARGE),
    "no JSON": (framed(b"plan = 1"), UpdateFault.BAD_HEADER),
    "no object": (framed(b"[]"), UpdateFault.BAD_HEADER),
    "unknown field": (hand_made(extra=1), UpdateFault.BAD_HEADER),
    "round as text": (hand_made(round="7"), UpdateFault.BAD_HEADER),
    "round as bool": (hand_made(attempt=True), UpdateFault.BAD_HEADER),
    "round as float": (hand_made(round=7.0), UpdateFault.BAD_HEADER),
    "plan": (hand_made(plan="f" * 16), UpdateFault.WRONG_PLAN),
    "round": (hand_made(round=8), UpdateFault.WRONG_ROUND),
    "attempt": (hand_made(attempt=2), UpdateFault.WRONG_ROUND),
    "model": (hand_made(model="cd" * 32), UpdateFault.WRONG_MODEL),
    "codec": (hand_made(codec="float16"), UpdateFault.WRONG_CODEC),
    "numbers": (hand_made(numbers=5), UpdateFault.WRONG_SHAPE),
    "weight": (hand_made(weight=1000.5), UpdateFault.BAD_WEIGHT),
    "metric's name": (hand_made(metrics={"loss": 0.1}), UpdateFault.BAD_METRICS),
    "trailing byte": (hand_made() + b"\0", UpdateFault.WRONG_LENGTH),
    "more than the header says": (hand_made(payload_bytes=12), UpdateFault.WRONG_LENGTH),
    "more than the codec may have": (hand_made(PAYLOAD + b"\0"), UpdateFault.WRONG_LENGTH),
    "another payload": (hand_made()[:-16] + floats(1, -2, 0.5, 1), UpdateFault.WRONG_DIGEST),
    "less than the codec has": (hand_made(PAYLOAD[:-4]), UpdateFault.BAD_PAYLOAD),
    "NaN": (hand_made(floats(1, 2, np.nan, 3)), UpdateFault.NOT_FINITE),
    "infinity": (hand_made(floats(1, 2, -np.inf, 3)), UpdateFault.NOT_FINITE),
    "norm": (hand_made(floats(6, 8.01, 0, 0)), UpdateFault.NORM_EXCEEDED),
}


@pytest.mark.parametrize("case", REASONS)
def test_a_bad_frame_is_refused_for_its_reason(case):
    frame, why = REASONS[case]
    assert reason(frame) == why


def test_every_reason_is_reached():
    """But for the one that only the sum can tell: see test_malicious_clients.py."""
    assert {why for _, why in REASONS.values()} == set(UpdateFault) - {UpdateFault.SHARE_EXCEEDED}


@pytest.mark.parametrize("field", sealed())
def test_a_missing_field_is_refused(field):
    header = sealed()
    del header[field]
    assert reason(framed(json.dumps(header).encode())) in {
        UpdateFault.BAD_HEADER,
        UpdateFault.BAD_WEIGHT,
        UpdateFault.BAD_METRICS,
    }


@pytest.mark.parametrize("field", sealed())
def test_a_repeated_field_is_refused_even_if_it_says_the_same(field):
    again = json.dumps({field: sealed()[field]})[1:-1]
    for twin in (again, again.replace(field[0], f"\\u{ord(field[0]):04x}", 1)):
        text = json.dumps(sealed())[:-1] + f", {twin}}}"
        assert reason(framed(text.encode())) == UpdateFault.BAD_HEADER


@pytest.mark.parametrize("text", ["0", "-1", "0.0", "-0.0", "1e999", "-1e999", "1e301", "true", '"1"', "null", "[1]"])
def test_a_bad_weight_is_refused(text):
    assert reason(with_text("weight", text)) == UpdateFault.BAD_WEIGHT


@pytest.mark.parametrize(
    "text",
    [
        "null",
        "[]",
        "{}",
        '{"train_loss": 1e999}',
        '{"train_loss": 1.1e12}',
        '{"train_loss": true}',
        '{"train_loss": "1"}',
        '{"train_loss": {}}',
        '{"train_loss": 1, "x": 1}',
        '{"Train_loss": 1}',
        '{"": 1}',
        json.dumps({"a" * 33: 1}),
        json.dumps({"a" * n: 1 for n in range(1, 18)}),
    ],
)
def test_bad_metrics_are_refused(text):
    assert reason(with_text("metrics", text)) == UpdateFault.BAD_METRICS


@pytest.mark.parametrize("field", ["weight", "numbers", "metrics", "plan"])
@pytest.mark.parametrize(
    "text", ["NaN", "Infinity", "-Infinity", "1" * 5000, "0x10", "01", "1_0", "٣", "'a'", "", "1,"]
)
def test_what_is_not_strict_json_is_refused(field, text):
    assert reason(with_text(field, text)) == UpdateFault.BAD_HEADER


@pytest.mark.parametrize("deep", ["[" * 8000 + "]" * 8000, '{"a":' * 2500 + "1" + "}" * 2500, "[" * 16000])
def test_deep_nesting_is_refused_without_recursion(deep):
    assert reason(framed(deep.encode())) == UpdateFault.BAD_HEADER
    assert reason(with_text("metrics", deep[:7000])) == UpdateFault.BAD_HEADER


@pytest.mark.parametrize(
    "text",
    [
        b"\xef\xbb\xbf" + json.dumps(sealed()).encode(),
        json.dumps(sealed()).encode("utf-16"),
        json.dumps(sealed()).encode("utf-32"),
        json.dumps(sealed()).encode() + b"\0",
        json.dumps(sealed()).encode() + b"{}",
        json.dumps(sealed()).replace("plan", "p\u200blan").encode(),
        json.dumps(sealed()).replace("float32", "float\uff13\uff12").encode(),
        json.dumps(sealed()).replace("float32", "float\\ud800").encode(),
        json.dumps(sealed()).replace("float32", "float32\\u0000").encode(),
        json.dumps(sealed()).replace("float32", "float32\\n").encode(),
        json.dumps(sealed()).replace(PLAN, PLAN.upper()).encode(),
        json.dumps(sealed()).replace(PLAN, PLAN + "\n").encode(),
        json.dumps(sealed()).encode().replace(b"float32", b"float\xc0\xb3"),
        json.dumps(sealed()).encode().replace(b"float32", b"float\xed\xa0\x80"),
    ],
)
def test_tricks_with_text_are_refused(text):
    assert reason(framed(text)) == UpdateFault.BAD_HEADER


def test_a_header_that_takes_long_to_scan_does_not_exist():
    nasty = [b'"' + b'\\"' * 8000, b'"' * 16000, b"\\" * 16000, b'{"a":' + b"9" * 16000, b'{"' * 8000, b"1e" * 8000]
    began = process_time()
    for text in nasty * 5:
        assert reason(framed(text)) == UpdateFault.BAD_HEADER
    assert process_time() - began < 2  # thirty headers; a quadratic scan of one would take longer


@pytest.mark.parametrize("width", [2, 4])
def test_a_signalling_nan_is_refused_without_a_warning(width):
    pattern = np.array([0x7D01] * 4, "<u2") if width == 2 else np.array([0x7FA00001] * 4, "<u4")
    codec = make_codec(f"float{8 * width}")
    frame = hand_made(pattern.tobytes(), codec=codec.name)
    assert reason(frame, changed(EXPECTED, codec=codec)) == UpdateFault.NOT_FINITE


def test_the_norm_is_bounded_only_if_asked_and_does_not_overflow():
    frame = hand_made(floats(3e38, 3e38, 0, 0))
    assert reason(frame) == UpdateFault.NORM_EXCEEDED
    assert decode_update(frame, changed(EXPECTED, max_norm=None)).vector[0] == np.float32(3e38)
    assert decode_update(frame, changed(EXPECTED, max_norm=4.3e38)).weight == 600
    at_the_bound = hand_made(floats(6, 8, 0, 0))
    assert decode_update(at_the_bound, EXPECTED).vector.tolist() == [6, 8, 0, 0]


class Brittle(Codec):
    """A codec that trips over its payload in the way it was made to."""

    name = "float32"
    additive = False

    def __init__(self, trip: Exception | torch.Tensor) -> None:
        self._trip = trip

    def pack(self, values, rng):
        return PAYLOAD

    def unpack(self, frame, size):
        raise AssertionError("decode does it all")

    def decode(self, frame, size):
        if isinstance(self._trip, Exception):
            raise self._trip
        return self._trip

    def max_bytes(self, size):
        return 4 * size


class Scaled(Brittle):
    """Numbers relative to the first, which a stranger may choose."""

    def decode(self, frame, size):
        values = np.frombuffer(frame, "<f4")
        return torch.from_numpy(values * values[0])


def test_arithmetic_of_a_codec_on_infinity_is_refused_without_a_warning():
    expected = changed(EXPECTED, codec=Scaled(torch.zeros(4)))
    assert reason(hand_made(floats(np.inf, 0, 0, 0)), expected) == UpdateFault.NOT_FINITE


TRIPS = [DataError("x"), ValueError(), struct.error(), IndexError(), KeyError(), OverflowError(), MemoryError()]
BROKEN = [torch.zeros(5), torch.zeros(2, 2), torch.zeros(4, dtype=torch.float64), torch.zeros(4).int()]


@pytest.mark.parametrize("trip", [*TRIPS, RuntimeError(), RecursionError(), *BROKEN])
def test_whatever_a_codec_trips_over_is_a_bad_payload(trip):
    assert reason(hand_made(), changed(EXPECTED, codec=Brittle(trip))) == UpdateFault.BAD_PAYLOAD


def test_a_header_that_could_not_be_read_back_is_not_sent():
    for bad in ({"weight": float("nan")}, {"metrics": {"loss": float("inf")}}, {"plan": "x"}, {"round": 0}):
        with pytest.raises(MessageRefused, match=next(iter(bad))):
            encode_update(UpdateHeader(**(HEADER | bad)), PAYLOAD)


@pytest.mark.parametrize("name", CODECS)
@given(data=st.data())
def test_a_round_trip_and_its_length(name, data):
    codec = make_codec(name)
    values = data.draw(st.lists(st.floats(-1000, 1000, width=16), min_size=1, max_size=50))
    loss, weight = data.draw(st.floats(-1e12, 1e12)), data.draw(st.floats(2.0**-20, 1e6))
    vector = torch.tensor(values)
    payload = codec.encode(vector, np.random.default_rng(0))
    header = UpdateHeader(PLAN, 3, 0, MODEL, name, len(values), weight, {"train_loss": loss})
    frame = encode_update(header, payload)
    expected = changed(EXPECTED, round=3, attempt=0, codec=codec, numbers=len(values), max_weight=1e6, max_norm=None)
    decoded = decode_update(frame, expected)
    assert torch.equal(decoded.vector, codec.decode(payload, len(values)))
    assert (decoded.weight, decoded.metrics) == (weight, {"train_loss": loss})
    assert len(frame) <= max_frame_bytes(len(values), codec)


def test_the_longest_frame_by_hand():
    assert max_frame_bytes(1000, make_codec("float32")) == 9 + 16384 + 4000
    assert max_frame_bytes(1000, make_codec("float16")) == 9 + 16384 + 2000


def refused(frame: bytes) -> UpdateFault | None:
    """Why a frame is refused. One that is taken must be, in every field, the update that was asked for."""
    try:
        decoded = decode_update(frame, EXPECTED)
    except UpdateRefused as error:
        return error.reason
    (length,) = struct.unpack("<I", frame[5:9])
    header, payload = json.loads(frame[9 : 9 + length]), frame[9 + length :]
    assert frame[:5] == b"FAVG\x01"
    assert header == sealed(payload, weight=decoded.weight, metrics=decoded.metrics)
    assert decoded.vector.numpy().tobytes() == payload
    assert 0 < decoded.weight <= 1000
    assert list(decoded.metrics) == ["train_loss"]
    assert abs(decoded.metrics["train_loss"]) <= 1e12
    assert np.linalg.norm(decoded.vector.double()) <= 10
    return None


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.integers(10**300, 10**301),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(field=st.sampled_from(list(sealed())) | st.text(), value=junk)
def test_a_header_with_another_value_is_refused_or_true(field, value):
    refused(hand_made(**{field: value}))
    refused(with_text(json.dumps(field)[1:-1], json.dumps(value)))


@given(a=st.sampled_from(list(sealed())), b=st.sampled_from(list(sealed())))
def test_swapped_header_fields_are_refused_or_true(a, b):
    header = sealed()
    header[a], header[b] = header[b], header[a]
    why = refused(framed(json.dumps(header).encode()))
    assert (why is None) == (header == sealed())


@given(place=st.integers(0, len(hand_made()) * 8 - 1))
def test_a_flipped_bit_never_changes_what_is_summed(place):
    frame = bytearray(hand_made())
    frame[place // 8] ^= 1 << place % 8
    if refused(bytes(frame)) is None:
        assert decode_update(frame, EXPECTED).vector.tolist() == VALUES.tolist()


@given(cut=st.integers(0, len(hand_made()) - 1))
def test_a_truncated_frame_is_refused(cut):
    assert refused(hand_made()[:cut]) == UpdateFault.TRUNCATED


@given(more=st.binary(min_size=1, max_size=100))
def test_an_extended_frame_is_refused(more):
    assert refused(hand_made() + more) == UpdateFault.WRONG_LENGTH


@given(noise=st.binary(max_size=200), skip=st.integers(0, 9))
def test_noise_is_refused(noise, skip):
    assert refused(hand_made()[:skip] + noise) is not None


# A fast mutator, seeded: what it makes is the same on every machine.

NASTY = [
    *(
        "NaN",
        "Infinity",
        "-Infinity",
        "1e999",
        "-1e999",
        "1e-999",
        "-0",
        "0",
        "-1",
        "1",
        "1.0",
        "7",
        "7.0",
        "4",
        "1e12",
    ),
    *("1000", "1000.0000001", "2147483648", "9" * 4400, "01", "1_0", "0x1", "+1", ".5", "١", "true", "false", "null"),
    *('""', '"NaN"', r'"\u0000"', r'"\ud800"', '"float16"', '"float32"', "'x'", "\xff", '"', "\\", "/**/", ",", ":"),
    *("[]", "{}", "[[]]", "[[[[[]]]]]", "[" * 9000, "[", "]", "{", "}", '{"a":1}', '{"train_loss":NaN}', '{"":0}'),
    *('{"train_loss":1e13}', '{"train_loss":-3}', '{"train_loss":1,"train_loss":1}', '{"train_loss":1,"train_loss":2}'),
]
SPECIALS = np.array([0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0x7F7FFFFF, 0x41200000, 1, 0x80000000], "<u4")


class Mutator:
    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._whole = hand_made()
        self._fields = list(sealed())
        self._kinds = [
            self._flip, self._flip, self._overwrite, self._cut, self._insert, self._delete, self._double,
            self._prefix, self._value, self._value, self._value, self._payload, self._numbers, self._noise,
        ]  # fmt: skip

    def __call__(self) -> bytes:
        frame = self._whole
        for _ in range(1 + self._below(2)):
            frame = self._kinds[self._below(len(self._kinds))](frame)
        return frame

    def _below(self, n: int) -> int:
        return int(self._rng.integers(max(n, 1)))

    def _slice(self, frame: bytes) -> tuple[int, int]:
        start = self._below(len(frame))
        return start, start + 1 + self._below(12)

    def _flip(self, frame: bytes) -> bytes:
        new = bytearray(frame)
        for _ in range(1 + self._below(3)):
            if new:
                new[self._below(len(new))] ^= 1 << self._below(8)
        return bytes(new)

    def _overwrite(self, frame: bytes) -> bytes:
        start, stop = self._slice(frame)
        return frame[:start] + self._rng.bytes(stop - start) + frame[stop:]

    def _cut(self, frame: bytes) -> bytes:
        return frame[: self._below(len(frame))]

    def _insert(self, frame: bytes) -> bytes:
        start, stop = self._slice(frame)
        return frame[:start] + self._rng.bytes(stop - start) + frame[start:]

    def _delete(self, frame: bytes) -> bytes:
        start, stop = self._slice(frame)
        return frame[:start] + frame[stop:]

    def _double(self, frame: bytes) -> bytes:
        start, stop = self._slice(frame)
        return frame[:stop] + frame[start:]

    def _prefix(self, frame: bytes) -> bytes:
        length = [0, 1, len(frame), MAX_HEADER, MAX_HEADER + 1, 2**31, 2**32 - 1, self._below(2**32)][self._below(8)]
        return b"FAVG" + bytes([self._below(3)]) + struct.pack("<I", length) + frame[9:]

    def _value(self, frame: bytes) -> bytes:
        return with_text(self._fields[self._below(len(self._fields))], NASTY[self._below(len(NASTY))])

    def _payload(self, frame: bytes) -> bytes:
        return hand_made(self._rng.bytes(self._below(24)))

    def _numbers(self, frame: bytes) -> bytes:
        numbers = VALUES.copy().view("<u4")
        numbers[self._below(4)] = SPECIALS[self._below(len(SPECIALS))]
        return hand_made(numbers.tobytes())

    def _noise(self, frame: bytes) -> bytes:
        return self._rng.bytes(self._below(64))


def judge(mutate: Mutator, count: int) -> Counter[UpdateFault | None]:
    """Go on until so many frames were refused; None counts those that were taken, which `refused` has judged."""
    reasons: Counter[UpdateFault | None] = Counter()
    while reasons.total() - reasons[None] < count:
        reasons[refused(mutate())] += 1
    return reasons


@pytest.mark.parametrize("count", [20_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_many_thousands_of_malformed_frames_are_refused(count):
    mutate = Mutator(seed=1)
    judge(mutate, 2_000)  # fills the caches of json and re
    gc.collect()
    before = sys.getallocatedblocks()
    reasons = judge(mutate, count)
    gc.collect()
    assert sys.getallocatedblocks() - before < 2_000  # a single block kept for each frame would be ten times as many
    assert set(reasons) == {None, *UpdateFault} - {UpdateFault.SHARE_EXCEEDED}
    assert reasons[None] < count / 20  # another digit in the weight, a tab for a space


def test_refusing_takes_no_memory_that_is_not_given_back():
    mutate = Mutator(seed=2)
    judge(mutate, 2_000)
    tracemalloc.start()
    try:
        judge(mutate, 1_000)
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        judge(mutate, 8_000)
        gc.collect()
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 64 * 1024  # eight bytes a frame
    assert peak - before < 1024 * 1024


def test_a_length_is_not_believed_before_the_bytes_are_there():
    frames = [b"FAVG\1" + struct.pack("<I", 2**32 - 1), hand_made(payload_bytes=2**48), hand_made(numbers=2**40)]
    large = changed(EXPECTED, numbers=2**40)
    frames_expected = [(frames[0], EXPECTED), (frames[1], EXPECTED), (frames[2], large)]
    tracemalloc.start()
    try:
        reasons = [reason(frame, expected) for frame, expected in frames_expected]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert reasons == [UpdateFault.HEADER_TOO_LARGE, UpdateFault.TRUNCATED, UpdateFault.BAD_PAYLOAD]
    assert peak < 1024 * 1024
