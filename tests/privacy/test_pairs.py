"""The table of what works together: plans are refused by it, and the docs show it."""

from pathlib import Path

import pytest

from fedavg import train
from fedavg.errors import PlanError
from fedavg.privacy.pairs import PAIRS, table
from fedavg.setup import simulation
from toys import toy_plan

PRIVATE = ("clip:0.5", "weigh:equal", "noise:1.0")

#: A plan for each pair that is refused.
REFUSED = {
    ("noise", "no clip before it"): {"stages": ("weigh:equal", "noise:1.0")},
    ("noise or localdp", "weights n_k"): {"stages": ("clip:0.5", "noise:1.0")},
    ("noise or localdp", "another stage after it"): {"stages": ("clip:1", "weigh:equal", "noise:1", "weigh:equal")},
    ("noise", "localdp"): {"stages": ("clip:1", "weigh:equal", "noise:1", "localdp:1:1")},
    ("clip with a quantile", "localdp"): {"stages": ("clip:1:quantile=0.5", "weigh:equal", "localdp:1:1")},
    ("clip", "another clip"): {"stages": ("clip:1", "clip:2")},
    ("noise where=clients, or with bits", "a codec that is not additive"): {
        "stages": ("clip:1", "weigh:equal", "noise:1:where=clients"),
        "codec": "float16",
    },
    ("noise with bits", "weigh:cap"): {"stages": ("clip:1", "weigh:cap=9", "noise:1:bits=9")},
    ("noise or localdp", "algorithm sgd"): {"stages": PRIVATE, "algorithm": "sgd", "E": 1},
    ("noise or localdp", "eval_train"): {"stages": PRIVATE, "eval_train": True},
    ("noise or localdp", "evaluation by clients"): {"stages": PRIVATE, "evaluate": "clients", "holdout": 0.3},
    ("secure aggregation", "a codec other than float32"): {"secagg": "complete:4:20", "codec": "float16"},
    ("secure aggregation", "an asynchronous algorithm"): {"secagg": "complete:4:20", "algorithm": "fedbuff:2"},
    ("noise or localdp", "sampling choice or oort"): {"stages": PRIVATE, "sampling": "choice:4"},
    ("secure aggregation", "sampling choice or oort"): {"secagg": "complete:4:20", "sampling": "choice:4"},
    ("noise or localdp", "fednova, adaptive"): {"stages": PRIVATE, "algorithm": "fednova"},
    ("noise or localdp", "an asynchronous algorithm"): {"stages": PRIVATE, "algorithm": "fedbuff:2"},
    ("noise or localdp", "a codec with error feedback"): {"stages": PRIVATE, "codec": "topk:0.1"},
    ("secure aggregation", "a reducer"): {"secagg": "complete:4:20", "reducer": "median"},
    ("secure aggregation", "an attack that sees the honest updates"): {
        "secagg": "complete:4:20",
        "attack": "alie",
        "attackers": 0.2,
    },
    ("secure aggregation", "attack nan or inf"): {"secagg": "complete:4:20", "attack": "nan", "attackers": 0.2},
    ("noise", "a reducer"): {"stages": PRIVATE, "reducer": "median"},
    ("a reducer", "clip with a quantile"): {"stages": ("clip:1:quantile=0.5",), "reducer": "median"},
    ("a reducer, or an attack that sees the honest updates", "an asynchronous algorithm"): {
        "algorithm": "fedbuff:2",
        "attack": "alie",
        "attackers": 0.2,
    },
    ("a reducer", "fednova, adaptive"): {"algorithm": "fednova", "reducer": "median"},
}


def test_every_refusal_has_a_plan_here():
    assert {(p.first, p.second) for p in PAIRS if p.refused} == set(REFUSED)


@pytest.mark.parametrize("pair", [p for p in PAIRS if p.refused], ids=lambda p: f"{p.first}/{p.second}")
def test_it_is_refused_at_load_time_with_the_reason(pair):
    plan = REFUSED[pair.first, pair.second]
    with pytest.raises(PlanError) as caught:
        simulation(toy_plan(**plan))
    assert f"{pair.first} with {pair.second}: {pair.why}" in str(caught.value)


WORKING = [
    {"stages": ("clip:0.5", "weigh:equal", "noise:1.0")},
    {"stages": ("clip:0.5:per=layer", "weigh:cap=10", "noise:1.0")},
    {"stages": ("clip:0.5:quantile=0.5", "weigh:equal", "noise:1.0"), "codec": "float16"},
    {"stages": ("clip:0.5", "weigh:equal", "noise:1.0:where=clients"), "sampling": "poisson"},
    {"stages": ("clip:0.5", "weigh:equal", "noise:1.0:bits=12:where=clients")},
    {"stages": ("weigh:equal", "localdp:9:1")},
    {"stages": PRIVATE, "algorithm": "fedsgd", "E": 1, "B": "inf"},
    {"stages": PRIVATE, "algorithm": "oneshot", "rounds": 1},
]


@pytest.mark.parametrize("plan", WORKING, ids=lambda plan: ",".join(map(str, plan["stages"])))
def test_it_works(plan):
    *_, last = train(toy_plan(**{"rounds": 2, **plan}))
    assert last.epsilon > 0
    assert last.train_loss is None


def test_the_docs_show_the_table():
    text = (Path(__file__).parents[2] / "docs/privacy.md").read_text()
    assert table() in text, "put the output of fedavg.privacy.pairs.table() into docs/privacy.md"
