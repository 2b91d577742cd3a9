import tomllib
from hashlib import blake2b
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedavg.algorithms.fedprox import FedProx
from fedavg.codecs.stc import STC
from fedavg.data.partition import Shards
from fedavg.errors import PlanError
from fedavg.plan import PRESETS, Plan, load_plan, make_plan
from fedavg.server import train
from fedavg.stages import Clip, Noise
from fedavg.types import Schedule
from toys import toy_data, toy_plan


def test_the_same_plan_from_python_strings_and_toml(tmp_path):
    python = Plan(C=0.2, E=5, B=inf, lr=0.3, target=0.97, eval_train=True, stages=("clip:1.0",))
    strings = make_plan(
        {"C": "0.2", "E": "5", "B": "inf", "lr": "0.3", "target": "0.97", "eval_train": "true", "stages": "clip:1.0"}
    )
    (tmp_path / "plan.toml").write_text(python.to_toml())
    assert python == strings == load_plan(str(tmp_path / "plan.toml"), {})
    assert hash(python) == hash(strings)


@given(
    C=st.floats(0, 1), E=st.integers(1, 50), B=st.one_of(st.integers(1, 1000), st.just(inf)), lr=st.floats(1e-6, 100),
    rounds=st.integers(1, 10**6), seed=st.integers(0, 2**62), target=st.one_of(st.none(), st.floats(0.01, 1)),
)  # fmt: skip
def test_toml_says_all_of_a_plan(C, E, B, lr, rounds, seed, target):
    plan = Plan(C=C, E=E, B=B, lr=lr, rounds=rounds, seed=seed, target=target)
    again = make_plan(tomllib.loads(plan.to_toml()))
    assert again == plan
    assert again.digest == plan.digest


def test_infinity_may_be_written_in_both_ways():
    assert Plan(B="∞") == Plan(B="inf") == Plan(B=inf)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("C", 1.5, "C: got 1.5; expected a number from 0 to 1"),
        ("C", "much", "C: got 'much'; expected a number from 0 to 1"),
        ("B", -1, "B: got -1; expected a whole number of at least 1, or inf"),
        ("B", 0, "B: got 0; expected a whole number of at least 1, or inf"),
        ("B", "2.5", "B: got '2.5'; expected a whole number of at least 1, or inf"),
        ("E", 0, "E: got 0; expected a whole number of at least 1"),
        ("lr", float("nan"), "lr: got nan; expected a number above 0"),
        ("lr", "nan", "lr: got 'nan'; expected a number above 0"),
        ("lr", 0, "lr: got 0; expected a number above 0"),
        ("lr", True, "lr: got True; expected a number above 0"),
        ("rounds", 2.5, "rounds: got 2.5; expected a whole number of at least 1"),
        ("target", 1.2, "target: got 1.2; expected a number above 0 to 1"),
        ("engine", "fast", "engine: got 'fast'; expected one of auto, graph, plain"),
        ("algorithm", "magic", "algorithm: got 'magic'; expected one of fedavg, "),
        ("task", "imagenet", "task: got 'imagenet'; expected one of mnist-2nn, "),
        ("data", "imagenet", "data: got 'imagenet'; expected one of mnist:[pixels=unit|centred], "),
        ("eval_train", "perhaps", "eval_train: got 'perhaps'; expected true or false"),
    ],
)
def test_a_bad_value_says_what_was_got_and_what_was_expected(option, value, message):
    with pytest.raises(PlanError) as error:
        make_plan({option: value})
    assert str(error.value).startswith(message)


def test_an_unknown_option_lists_the_known_ones():
    with pytest.raises(PlanError, match="unknown option 'epochs'; expected one of task, data, "):
        make_plan({"epochs": 3})


def test_an_unknown_preset_lists_the_known_ones():
    with pytest.raises(PlanError, match="got 'mnist-3nn'; expected a preset \\(mnist-2nn, "):
        load_plan("mnist-3nn", {})


def test_a_missing_or_broken_file_is_named(tmp_path):
    with pytest.raises(PlanError, match="cannot read the plan .*no.toml: No such file"):
        load_plan(str(tmp_path / "no.toml"), {})
    (tmp_path / "bad.toml").write_text("C = = 1")
    with pytest.raises(PlanError, match="bad.toml is not TOML"):
        load_plan(str(tmp_path / "bad.toml"), {})


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_a_plan(preset):
    assert load_plan(preset, {"rounds": 7}).rounds == 7


def test_work_of_a_round():
    plan = Plan(E="20,100:5,300:1", B="10,50:inf", lr=0.5, lr_decay=0.9)
    assert [plan.work(t).epochs for t in (1, 99, 100, 299, 300, 999)] == [20, 20, 5, 5, 1, 1]
    assert [plan.work(t).batch for t in (1, 49, 50)] == [10, 10, inf]
    assert [plan.work(t).lr for t in (1, 2, 3)] == [0.5, 0.45, pytest.approx(0.405)]
    assert plan.work(7).round == 7


def test_a_schedule_reads_back_as_it_was_written():
    assert str(Plan(E="20,100:5").E) == "20,100:5"
    assert Schedule(((1, 20), (100, 5))) == Plan(E="20,100:5").E
    for bad in ("5:20", "20,100:5,100:3", "20,7:1,5:2", "20,x:1", ""):
        with pytest.raises(PlanError, match="E: got"):
            Plan(E=bad)


def test_the_digest_is_of_what_decides_the_result():
    plan = Plan()
    assert Plan(workers=7, data_dir="elsewhere", checkpoint_s=1).digest == plan.digest
    assert Plan(seed=1).digest != plan.digest
    assert Plan(rounds=101).digest != plan.digest


def test_options_that_later_versions_add_do_not_change_the_digest():
    """By hand: only what was chosen counts, sorted by name."""
    chosen = b'{"codec": "stc:0.01", "lr": 0.3}'
    assert Plan(lr=0.3, codec="stc:0.01").digest == blake2b(chosen, digest_size=8).hexdigest()


def test_parts_as_objects_by_name_and_by_import_name_are_the_same_plan():
    objects = Plan(algorithm=FedProx(mu=0.1), codec=STC(0.02), stages=[Clip(1.0), Noise(1.1)])
    texts = Plan(algorithm="fedprox:0.1", codec="stc:0.02", stages="clip:1.0, noise:1.1")
    assert objects == texts
    assert objects.digest == texts.digest
    assert make_plan(tomllib.loads(objects.to_toml())) == objects
    assert Plan(partition=Shards(3), clients=10) == Plan(partition="shards:3", clients=10)


def test_what_does_not_change_by_round_is_a_plain_number():
    assert Plan(E=2).E == 2
    assert Plan(E="2").E == 2
    assert Plan(B=10).B == 10
    assert inf == Plan(B="inf").B
    assert Schedule(((1, 2), (5, 3))) == Plan(E=Plan(E="2,5:3").E).E


@pytest.mark.parametrize(("option", "value"), [("partition", "iid"), ("clients", 5)])
def test_an_option_without_effect_is_an_error(option, value):
    message = f"{option}: got .*{value}.* with data of your own, which has its clients already; leave it out"
    with pytest.raises(PlanError, match=message):
        toy_plan(**{option: value})


def test_installed_data_is_divided_already():
    with pytest.raises(PlanError, match="partition: got 'iid' with data of your own"):
        Plan(data="toys:toy_data", partition="iid")
    with pytest.raises(
        PlanError, match="clients: got 5 with data 'blobs', which has 6 clients of its own; leave it out"
    ):
        next(train(Plan(task="toys:TOY", data="toys:toy_data", clients=5)))
    assert next(train(Plan(task="toys:TOY", data="toys:toy_data", clients=6, workers=1))).round == 0


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("stages", 5, "stages: got 5; expected a list of fedavg.Stage or of texts"),
        ("stages", [5], "stages: got 5 of type int; expected a fedavg.Stage"),
        ("stages", [Clip], "stages: got the class Clip; expected an object: Clip"),
        ("algorithm", Clip(1.0), "algorithm: got .*Clip.* expected a fedavg.Algorithm"),
        ("codec", None, "codec: got None of type NoneType; expected a fedavg.Codec"),
        ("task", 3.5, "task: got 3.5 of type float; expected a fedavg.Task"),
        ("data", [1, 2], "data: got .* of type list; expected a fedavg.FederatedData"),
        ("data", "object:mine", "stands for an object from Python"),
        ("partition", 2, "partition: got 2 of type int; expected a fedavg.Partition"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(option, value, message):
    with pytest.raises(PlanError, match=message):
        Plan(**{option: value})


def test_objects_are_shown_by_name():
    shown = toy_plan(data=toy_data()).to_dict()
    assert shown["task"] == "object:toy"
    assert shown["data"] == "object:blobs"


def test_a_setting_of_the_data_at_its_default_does_not_count_in_the_digest():
    assert Plan(data="mnist:pixels=unit") == Plan(data="mnist:unit") == Plan(data="mnist")
    assert Plan(data="mnist:centred").data == "mnist:pixels=centred", "settings may go by place, as those of any part"
    centred = Plan(data="mnist:pixels=centred")
    assert centred.digest != Plan().digest
    assert make_plan(tomllib.loads(centred.to_toml())) == centred
