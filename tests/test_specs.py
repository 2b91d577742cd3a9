from dataclasses import dataclass

import pytest

from fedavg.errors import PlanError
from fedavg.specs import parse_spec, usage


@dataclass(frozen=True)
class Tea:
    grams: float
    minutes: int = 3
    milk: bool = False


KINDS = {"tea": Tea}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tea:2.5", Tea(2.5)),
        ("tea:2.5:4", Tea(2.5, 4)),
        ("tea:grams=1:milk=true", Tea(1.0, 3, True)),
        ("tea:1:milk=false", Tea(1.0)),
    ],
)
def test_settings_by_place_and_by_name(text, expected):
    assert parse_spec(text, KINDS, "drink") == expected


@pytest.mark.parametrize(
    "text",
    ["tea", "tea:", "tea:hot", "tea:1:1.5", "tea:1:3:true:9", "tea:1:sugar=2", "tea:1:grams=2", "tea:1:milk=yes"],
)
def test_what_does_not_fit_is_refused_with_the_way_it_is_written(text):
    with pytest.raises(PlanError, match=r"drink: got '.*'; expected 'tea:GRAMS:\[minutes=3\]:\[milk=False\]'"):
        parse_spec(text, KINDS, "drink")


def test_an_unknown_name_lists_the_known():
    with pytest.raises(PlanError, match=r"drink: got 'mud'; expected one of tea:GRAMS"):
        parse_spec("mud", KINDS, "drink")
    assert usage(KINDS) == ["tea:GRAMS:[minutes=3]:[milk=False]"]
