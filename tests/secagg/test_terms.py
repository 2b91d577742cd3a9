"""Terms as JSON: the same at both ends, and strict."""

import json

import pytest
from parties import small_terms

from fedavg.secagg import Encoding, Terms, TermsError


@pytest.mark.parametrize(
    "terms",
    [
        small_terms(4),
        small_terms(4, threshold=4, signed=True),
        small_terms(100, sparse=(0, 0.05)),
        small_terms(4, encoding=Encoding(4, 7, 1, 10.5, ("a", "b"), bits=64, wraps=True)),
    ],
)
def test_json_there_and_back(terms):
    again = Terms.from_json(terms.to_json())
    assert again == terms
    assert again.digest == terms.digest


def test_every_field_is_in_the_digest():
    digests = {
        small_terms(4, **change).digest
        for change in (
            {}, {"session": bytes(16)}, {"round": 1}, {"model": bytes(32)}, {"threshold": 4}, {"signed": True},
            {"dimension": 6}, {"bits": 64},
        )
    }  # fmt: skip
    assert len(digests) == 8


@pytest.mark.parametrize(
    "change",
    [
        {"session": "00"}, {"session": "zz" * 16}, {"round": -1}, {"round": "1"}, {"round": True}, {"round": 1.0},
        {"model": "00"}, {"threshold": 2}, {"threshold": 5}, {"threshold": 3.0}, {"sparse": [0.1]}, {"signed": 1},
        {"sparse": [0.1, "0.2"]}, {"sparse": [0.1, True]}, {"sparse": [float("nan"), 0.1]}, {"extra": 1},
        {"encoding": None}, {"encoding": {}}, {"threshold": 3, "sparse": [0.0, 0.1]},
    ],
)  # fmt: skip
def test_anything_else_is_refused(change):
    content = json.loads(small_terms(4).to_json())
    with pytest.raises(TermsError):
        Terms.from_json(json.dumps(content | change))


@pytest.mark.parametrize(
    "change",
    [{"clients": "4"}, {"bits": 8}, {"metrics": "loss"}, {"metrics": [1]}, {"clip": None}, {"clip": float("nan")},
     {"more": 1}, {"dimension": 5.0}],
)  # fmt: skip
def test_so_is_any_other_encoding(change):
    content = json.loads(small_terms(4).to_json())
    content["encoding"] |= change
    with pytest.raises(TermsError):
        Terms.from_json(json.dumps(content))


@pytest.mark.parametrize("text", ["", "[]", "null", "{", "[" * 100_000, '{"session": 1}'])
def test_what_is_no_terms_at_all_is_refused(text):
    with pytest.raises(TermsError, match="not the terms"):
        Terms.from_json(text)
