"""Messages: what is taken, what is refused and by which name, and that the schemas say the same as the parser."""

import json
import re
from base64 import b64encode
from dataclasses import asdict, fields

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedavg.errors import FedAvgError
from fedavg.fleets.http.protocol import strict
from fedavg.fleets.http.protocol.messages import (
    MAX_MESSAGE,
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
    Selection,
    Taken,
    UpdateAnswer,
    WaitAnswer,
    WorkOffer,
)
from fedavg.fleets.http.protocol.strict import (
    MAX_DEPTH,
    MessageRefused,
    dump,
    parse,
    printable,
    schema,
)
from fedavg.plan import Plan

KEY, MODEL = b64encode(bytes(range(32))).decode(), "ab" * 32
EXAMPLES = [
    EnrolRequest("invite-1", KEY, 600, "Büro 3", None, ["mnist-2nn", "mnist-cnn"], 2),
    EnrolRequest("invite-1", KEY, 0, "", 7, ["my.module:task"], 2),
    Enrolled(7, "e-1", 1, Plan().to_toml(), Plan().digest),
    Enrolled(7, "e-1", None, None, None),
    PollRequest(Eligibility(True, False, True), 600, None, None, 60.0),
    PollRequest(Eligibility(True, True, True), 0, Holding(3, 0, MODEL), Taken(2, Plan().digest), 0.0),
    PlanAnswer(2, Plan().to_toml(), Plan().digest),
    NewRun(Plan().to_toml(), "weekly", None),
    Extension(200, 0.01, None),
    WorkOffer(3, 0, MODEL, 199_210, 120.0, 5, None, 0.1, {"mu": 0.01}, "token", None, 10, 3, True),
    WorkOffer(3, 0, MODEL, 199_210, 120.0, 5, 10.0, 0.1, {}, None, "0f" * 16, 10, 0, None),
    JudgeOffer(3, 1 << 30, MODEL, 199_210, 120.0, None, "0f" * 16, 10),
    MaskAnswer(3, 0, "0f" * 16, 2),
    WaitAnswer(1.5, 0, False),
    DoneAnswer(100, MODEL, False, True),
    UpdateAnswer(True, False),
    ReportRequest(3, 0, "failed", "training-failed", 7, "out of memory\n  at step 3"),
    NewToken(None, "", 3, None),
    NewRole("viewer", "grafana", None),
    NewRole("submitter", "the lab", 24.0),
    NewToken(5, "the lab", None, 24.0),
    Selection(None, "0f" * 8, "10.0.0.0/8", 2.0, None),
    Problem("stale-epoch", "sign again", "e-2"),
    Problem("wrong-round", "", None),
]
CLASSES = sorted({type(example) for example in EXAMPLES}, key=lambda kind: kind.__name__)


def kind_of(message: object) -> type:
    return PollAnswer if isinstance(message, PollAnswer) else type(message)


def refusal(kind: type, body: bytes | object, limit: int = MAX_MESSAGE) -> MessageRefused:
    with pytest.raises(MessageRefused) as caught:
        parse(kind, body if isinstance(body, bytes) else json.dumps(body).encode(), limit)
    assert isinstance(caught.value, FedAvgError)
    return caught.value


def fault(kind: type, body: bytes) -> MessageRefused | None:
    try:
        parse(kind, body, MAX_MESSAGE)
    except MessageRefused as error:
        return error
    return None


@pytest.mark.parametrize("message", EXAMPLES)
def test_a_message_comes_back_as_it_was(message):
    back = parse(kind_of(message), dump(message), MAX_MESSAGE)
    assert back == message
    assert type(back) is type(message)
    assert json.loads(dump(message)) == asdict(message)


def test_a_message_by_hand():
    body = b'{"type": "wait", "committed": 4, "counted": null, "retry_after_s": 2}'
    answer = parse(PollAnswer, body, 100)
    assert answer == WaitAnswer(retry_after_s=2.0, committed=4, counted=None)
    assert isinstance(answer, WaitAnswer)
    assert type(answer.retry_after_s) is float
    assert dump(answer) == b'{"type":"wait","retry_after_s":2.0,"committed":4,"counted":null}'


def test_a_message_is_not_read_beyond_its_limit():
    body = dump(UpdateAnswer(True, False))
    assert parse(UpdateAnswer, body, len(body)) == UpdateAnswer(True, False)
    error = refusal(UpdateAnswer, body, len(body) - 1)
    assert (error.reason, error.field) == ("too-large", None)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"1",
        b'"text"',
        b"\xff\xfe",
        b"\xef\xbb\xbf" + dump(UpdateAnswer(True, False)),
        dump(UpdateAnswer(True, False)) + b"{}",
        json.dumps({"accepted": True, "duplicate": False}).encode("utf-16"),
        b'{"accepted": true, "duplicate": false, "duplicate": false}',
        b'{"accepted": true, "duplicate": false, "dupl\\u0069cate": false}',
        b'{"accepted": NaN, "duplicate": false}',
        b'{"accepted": Infinity, "duplicate": false}',
        b'{"accepted": ' + b"9" * 5000 + b', "duplicate": false}',
        b'{"accepted": true, "duplicate": ' + b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1) + b"}",
        b"[" * 100_000,
        b'{"a":' * 20_000,
        b"'accepted'",
        b'{"accepted": "\t", "duplicate": false}',
    ],
)
def test_what_is_not_strict_json_is_refused(body):
    error = refusal(UpdateAnswer, body)
    assert (error.reason, error.field) == ("bad-json", None)


def test_brackets_in_texts_are_not_depth():
    report = ReportRequest(1, 0, "failed", "bad-offer", None, '[[[[[[{{{{{{ "\\" ]')
    assert parse(ReportRequest, dump(report), 1000) == report


@pytest.mark.parametrize("message", EXAMPLES)
def test_each_field_is_needed_and_no_other_is_taken(message):
    values = json.loads(dump(message))
    for name in values:
        error = refusal(kind_of(message), {key: value for key, value in values.items() if key != name})
        assert (error.reason, error.field) == ("bad-field", name)
    error = refusal(kind_of(message), values | {"extra": 1})
    assert (error.reason, error.field) == ("bad-field", "extra")


HALF = "\ud800"
BAD = {
    EnrolRequest: {
        "token": ["", " ", "a b", "é", "x" * 1025, "a\n", None, 1],
        "key": ["", KEY[:-1], KEY + "=", KEY[:-2] + "9=", KEY.replace("A", "-"), b64encode(bytes(31)).decode(), None],
        "examples": [-1, 2**31 + 1, 1.0, "1", True, None, 10**400],
        "name": ["x" * 65, "a\nb", "a\x00", "\x7f", "\u202eevil", "\u200b", HALF, None, 3],
        "client": [-1, 2**31, 1.5, "1", False],
        "tasks": ["", [], [""], ["a b"], ["x" * 129], [None], ["a", "a"], ["x"] * 33, None],
        "protocol": [0, -1, 65_536, 1.0, "1", True, None],
    },
    Enrolled: {
        "client": [None, -1, True, 2**31],
        "epoch": ["", "a b", "a\n", "x" * 65, "é", None],
        "run": [0, -1, 1.0, True, 2**31],
        "plan": ["", "\x00", "\x1b[31m", HALF, "x" * 16_385],
        "plan_digest": ["", "ABCDEF0123456789", "0" * 15, "0" * 65, "g" * 16],
    },
    PollRequest: {
        "examples": [-1, 2**31 + 1, 1.0, "1", True, None],
        "eligible": [None, True, [], {}],
        "eligible.charging": [None, 1, 0, "true"],
        "eligible.unmetered": [None, 1.0],
        "eligible.idle": [[], {}],
        "holding": [False, [], "", 0],
        "holding.round": [0, -1, 1.0, True, 2**31, None],
        "holding.attempt": [-1, "0", None],
        "holding.model": ["", "AB" * 32, "ab" * 31, "ab" * 33, "ab" * 32 + "\n", None],
        "run": [False, [], 1],
        "run.run": [0, 1.0, None],
        "run.plan_digest": ["", "0" * 15, None],
        "wait_s": [-1, 60.001, True, "1", None],
    },
    WorkOffer: {
        "type": ["Work", "", None, 1, ["work"]],
        "round": [0, True, None],
        "attempt": [-1, 0.0],
        "model": [MODEL[:-1], None],
        "numbers": [0, 2**40 + 1, 4.0, True],
        "deadline_s": [-1, None],
        "epochs": [0, 1.0, None],
        "batch": [0, 0.5, 1.5, -1, "inf", True, 2**31],
        "lr": [0, -0.1, 1e13, None, True],
        "settings": [None, [], {"A": 1}, {"": 1}, {"a b": 1}, {"x" * 33: 1}, {f"a{n}": 1 for n in range(17)}],
        "settings.mu": [None, "1", True, 1e13, {}],
        "upload_token": ["", "a b", "a\nb", "x" * 1025, 1],
        "session": ["", "0F" * 16, "0f" * 15, 1],
        "invited": [-1, 1.0, None],
        "changes": [-1, 1.0, None],
        "counted": [0, "true", {}],
    },
    JudgeOffer: {
        "round": [0, True, None],
        "attempt": [-1, 0.0],
        "model": [MODEL[:-1], None],
        "numbers": [0, 2**40 + 1, 4.0, True],
        "deadline_s": [-1, None],
        "upload_token": ["", "a b", "x" * 1025, 1],
        "session": ["", "0F" * 16, "0f" * 15, 1],
        "invited": [-1, 1.0, None],
    },
    MaskAnswer: {
        "round": [0, None],
        "attempt": [-1, None],
        "session": ["", "0f" * 17, None],
        "step": [0, 9, 1.0, None],
    },
    NewToken: {
        "hours": [0, -1, 1e9, "1"],
        "uses": [0, 1.0, True],
        "label": ["x" * 65, "a\nb", None],
        "client": [-1, 1.5, "1"],
    },
    NewRole: {"role": ["", "admin", None, 1], "label": ["", "x" * 65, "a\nb", None], "hours": [0, -1, 1e9, "1"]},
    WaitAnswer: {"retry_after_s": [-1, None], "committed": [-1, 1.0, None], "counted": [1, ""]},
    DoneAnswer: {"round": [-1, True], "model": ["", None], "more": [None, 1], "counted": [0, []]},
    PlanAnswer: {"run": [0, None], "plan": ["", None], "plan_digest": ["0" * 15, None]},
    NewRun: {"plan": ["", "x" * 16_385, None], "name": ["x" * 65, "a\nb", None], "init": ["", "AB" * 32, 1]},
    Extension: {"rounds": [0, 1.0, "1"], "lr": [0, -1, "0.1"], "from_round": [0, True]},
    UpdateAnswer: {"accepted": [None, 1, 0, "true"], "duplicate": [None, 1, {}]},
    ReportRequest: {
        "round": [-1, "1"],
        "attempt": [-1],
        "kind": ["", "Failed", "ok", None, 1],
        "reason": ["", "a-reason-of-my-own", None, 1],
        "blames": [-1, 2**20, "1", True],
        "detail": ["x" * 501, "\x00", "\r", "\u2028", HALF, None],
    },
    Selection: {
        "client": [-1, 2**20, True],
        "token": ["", "0F" * 8, "0f" * 7, 1],
        "address": ["", "a b", 1],
        "newer_than_h": [0, -1, 1e9, "1"],
        "older_than_h": [0, True, 1e9],
    },
    Problem: {
        "error": ["", "Bad", "a b", "x" * 65, None],
        "detail": ["x" * 1001, "\x1b", None],
        "epoch": ["", "a b", 1],
    },
}
CASES = [(kind, path, value) for kind, rows in BAD.items() for path, values in rows.items() for value in values]


def spoilt(kind: type, path: str, value: object) -> tuple[type, dict[str, object]]:
    """A message of this kind, as JSON has it, with one bad value."""
    message = next(example for example in reversed(EXAMPLES) if type(example) is kind)
    values = json.loads(dump(message))
    *outer, name = path.split(".")
    (values[outer[0]] if outer else values)[name] = value
    return kind_of(message), values


@pytest.mark.parametrize(("kind", "path", "value"), CASES)
def test_a_bad_field_is_refused_by_name(kind, path, value):
    answered, values = spoilt(kind, path, value)
    error = refusal(answered, values)
    assert error.reason == "bad-field"
    assert error.field is not None
    # {} for an object names the field it lacks, a list the item that is wrong
    assert error.field == path or error.field.startswith((f"{path}.", f"{path}["))
    assert str(error).startswith(error.field)
    assert str(error).isprintable()
    assert len(str(error)) < 400


def test_every_field_of_every_message_has_bad_values():
    for kind in CLASSES:
        assert {spec.name for spec in fields(kind)} - {"type"} <= set(BAD[kind])


def test_the_text_of_a_number_out_of_range_is_refused_by_name():
    error = refusal(PollAnswer, b'{"type": "wait", "committed": 4, "counted": null, "retry_after_s": 1e999}')
    assert (error.reason, error.field) == ("bad-field", "retry_after_s")


def test_an_unknown_name_of_a_stranger_is_shown_short_and_safe():
    error = refusal(UpdateAnswer, {"accepted": True, "duplicate": False, "\u202e\n\ud800" + "x" * 10_000: 1})
    assert str(error).isprintable()
    assert len(str(error)) < 300
    assert error.field.isascii()


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (WaitAnswer(float("nan"), 0, None), "retry_after_s"),
        (WorkOffer(3, 0, MODEL, 10, 1.0, 5, float("inf"), 0.1, {}, None, None, 1, 0, None), "batch"),
        (Problem("bad", HALF, None), "detail"),
        (PollRequest(Eligibility(1, True, True), 1, None, None, 1.0), "eligible.charging"),
    ],
)
def test_what_would_be_refused_is_not_written(message, field):
    with pytest.raises(MessageRefused) as caught:
        dump(message)
    assert caught.value.field == field


@given(text=st.text(st.characters(), max_size=600))
def test_any_text_can_be_made_a_detail(text):
    report = ReportRequest(1, 0, "failed", "bad-offer", None, printable(text, 500))
    assert parse(ReportRequest, dump(report), MAX_MESSAGE) == report


def test_a_plain_detail_is_kept_as_it_is():
    assert printable("Füße\n\tπ 😀", 500) == "Füße\n\tπ 😀"
    assert printable("a\x00b\u202ec" + HALF, 500) == "a?b?c?"
    assert printable("abc", 2) == "ab"


# The schemas and the parser are made from the same rules; an independent validator says if they agree.

VALIDATORS = {kind: jsonschema_rs.validator_for(schema(kind)) for kind in MESSAGES}


def allowed(rule: strict.Rule) -> st.SearchStrategy:
    """Values that a rule allows."""
    match rule:
        case strict.Flag():
            return st.booleans()
        case strict.Integer(low, high):
            return st.integers(low, high)
        case strict.Number(low, high, above, whole):
            return st.integers(int(low), int(high)) if whole else st.floats(low, high, exclude_min=above)
        case strict.Text(characters, low, high):
            character = st.from_regex(characters, fullmatch=True).filter(lambda c: not "\ud800" <= c <= "\udfff")
            return st.text(character, min_size=low, max_size=min(high, max(low, 40)))
        case strict.Key():
            return st.binary(min_size=32, max_size=32).map(lambda key: b64encode(key).decode())
        case strict.OneOf(names):
            return st.sampled_from(names)
        case strict.Nullable(inner):
            return st.none() | allowed(inner)
        case strict.TableOf(name, value, most):
            return st.dictionaries(allowed(name), allowed(value), max_size=most)
        case strict.ListOf(each, most):
            return st.lists(allowed(each), min_size=1, max_size=min(most, 4), unique=True)
        case strict.Nested(kind):
            return instances(kind)
    raise AssertionError(rule)


def instances(kind: type) -> st.SearchStrategy:
    return st.builds(kind, **{spec.name: allowed(spec.metadata["rule"]) for spec in fields(kind) if spec.init})


@pytest.mark.parametrize("kind", CLASSES)
@given(data=st.data())
def test_what_the_rules_allow_is_written_read_and_in_the_schema(kind, data):
    message = data.draw(instances(kind))
    body = dump(message)
    assert len(body) <= MAX_MESSAGE
    assert parse(kind_of(message), body, MAX_MESSAGE) == message
    assert VALIDATORS[kind_of(message)].is_valid(json.loads(body))


numbers = st.integers(-(2**62), 2**62) | st.floats(allow_nan=False, allow_infinity=False)
scalars = (
    st.none() | st.booleans() | numbers | st.text(max_size=80) | st.sampled_from([KEY, MODEL, 0, 1, "work", "done"])
)
junk = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abA_", max_size=3), inner, max_size=3)
)


def is_schema_matter(value: object) -> bool:
    """JSON Schema calls 1.0 an integer, the parser does not; the validator takes no half pairs or endless ints."""
    return value not in (HALF, 10**400) and not (isinstance(value, float) and value.is_integer() and value < 1e12)


def test_an_element_of_a_list_is_named_by_its_place():
    enrolling = next(message for message in EXAMPLES if isinstance(message, EnrolRequest))
    values = json.loads(dump(enrolling)) | {"tasks": ["mine", None]}
    assert fault(EnrolRequest, json.dumps(values).encode()).field == "tasks[1]"


@given(message=st.sampled_from(EXAMPLES), data=st.data())
def test_the_schema_and_the_parser_agree(message, data):
    values = json.loads(dump(message))
    name = data.draw(st.sampled_from([*values, "extra"]))
    values[name] = data.draw(junk.filter(is_schema_matter))
    error = fault(kind_of(message), json.dumps(values).encode())
    assert (error is None) == VALIDATORS[kind_of(message)].is_valid(values)
    if error and name != "type":  # another type makes other fields wrong
        assert error.reason == "bad-json" or re.split(r"[.\[]", error.field)[0] == name  # of a list: `tasks[0]`


@pytest.mark.parametrize(("kind", "path", "value"), [case for case in CASES if is_schema_matter(case[2])])
def test_the_schema_refuses_what_the_parser_refuses(kind, path, value):
    answered, values = spoilt(kind, path, value)
    assert not VALIDATORS[answered].is_valid(values)


@given(body=st.binary(max_size=60) | st.text(max_size=60).map(str.encode) | junk.map(lambda v: json.dumps(v).encode()))
def test_nothing_but_a_refusal_comes_of_noise(body):
    assert all(fault(kind, body).reason in {"bad-json", "too-large", "bad-field"} for kind in MESSAGES)


def test_the_longest_plan_fits_a_message():
    for character in ("😀", '"', "\n"):
        plan = Enrolled(1, "e", 1, character * 16_384, "0" * 16)
        assert parse(Enrolled, dump(plan), MAX_MESSAGE) == plan
