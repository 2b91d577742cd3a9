import numpy as np
import pytest
import torch

from fedavg import Round, Start, Task, train
from fedavg.cohorts import sample_cohort
from fedavg.errors import DataError, Diverged, PlanError
from fedavg.setup import population_of
from toys import SIZES, TOY, toy_data, toy_plan


def rounds_of(plan):
    return [event for event in train(plan) if isinstance(event, Round)]


@pytest.mark.parametrize(("C", "size"), [(0, 1), (0.1, 1), (0.5, 3), (0.9, 5), (1, 5)])
def test_the_cohort_has_max_of_CK_and_1_clients_that_have_data(C, size):
    """Six clients, one of them without data."""
    plan = toy_plan(C=C)
    clients = population_of(plan.data)
    for round in range(1, 30):
        cohort = sample_cohort(plan, clients, round)
        assert len(cohort) == len(set(cohort)) == size
        assert all(SIZES[k] > 0 for k in cohort)


def test_every_client_with_data_has_its_turn():
    plan = toy_plan(C=0)
    clients = population_of(plan.data)
    counts = np.bincount([sample_cohort(plan, clients, round)[0] for round in range(1, 1001)], minlength=6)
    assert counts[2] == 0
    assert (counts[[0, 1, 3, 4, 5]] > 150).all()


def test_the_first_event_is_the_start():
    start, *rounds = train(toy_plan())
    assert isinstance(start, Start)
    assert start.round == 0
    assert start.engine.startswith("graph")
    assert [event.round for event in rounds] == [1, 2, 3, 4]


def test_evaluation_every_so_many_rounds_and_after_the_last():
    events = rounds_of(toy_plan(rounds=5, eval_every=2, eval_train=True))
    assert [event.test is not None for event in events] == [False, True, False, True, True]
    assert [event.train is not None for event in events] == [False, True, False, True, True]


def test_evaluation_by_hand():
    """Test accuracy and loss of the trained model over all 60 examples, and the same over all 53 training examples."""
    from fedavg.engine.model import Model

    data = toy_data()
    last = rounds_of(toy_plan(data=data, eval_train=True))[-1]
    model = Model(TOY, seed=0)
    model.load(last.state.weights)
    with torch.no_grad():
        output = model.module(data.test.x)
        everything = [data.client(k) for k in range(6)]
        x, y = torch.cat([e.x for e in everything]), torch.cat([e.y for e in everything])
        on_train = model.module(x)
    assert last.test["accuracy"] == pytest.approx(float((output.argmax(1) == data.test.y).float().mean()))
    assert last.test["loss"] == pytest.approx(float(torch.nn.functional.cross_entropy(output, data.test.y)))
    assert last.train["loss"] == pytest.approx(float(torch.nn.functional.cross_entropy(on_train, y)))


def test_it_stops_at_the_target():
    events = rounds_of(toy_plan(rounds=100, target=0.7))
    assert len(events) < 100
    assert events[-1].test["accuracy"] >= 0.7
    assert all(event.test["accuracy"] < 0.7 for event in events[:-1])


def test_bytes_and_the_simulated_clock_are_those_of_real_messages():
    size = 8 * 16 + 16 + 16 * 3 + 3
    for codec, width in (("float32", 4), ("float16", 2)):
        event = rounds_of(toy_plan(rounds=1, codec=codec, uplink=0.5))[0]
        assert event.clients == 3
        assert event.bytes_up == 3 * width * size
        assert event.bytes_down == 3 * 4 * size
        assert event.simulated_s == pytest.approx(width * size / 0.5e6)


def test_clipped_updates_move_the_model_no_further_than_the_bound():
    start, first, *_ = train(toy_plan(lr=1.0, stages=("clip:0.01",)))
    assert float((first.state.weights - start.state.weights).norm()) <= 0.01 + 1e-6


def test_the_learning_rate_decays():
    assert [event.lr for event in rounds_of(toy_plan(lr=0.1, lr_decay=0.5))] == [0.1, 0.05, 0.025, 0.0125]


@pytest.mark.parametrize("lr", [1e30, 1e12])
def test_a_diverged_run_stops_at_the_round_and_says_so(lr):
    with pytest.raises(Diverged, match=r"round \d diverged at lr=1e\+.*Use a smaller lr"):
        rounds_of(toy_plan(lr=lr, rounds=50))


def test_no_data_at_all_is_refused():
    with pytest.raises(DataError, match="no client has any example"):
        next(train(toy_plan(data=toy_data(sizes=(0, 0)))))


def test_a_target_needs_an_accuracy():
    task = Task("t", TOY.build, metrics=["loss"])
    with pytest.raises(PlanError, match="target: the task has no metric 'accuracy'; expected one of loss"):
        next(train(toy_plan(task=task, target=0.5)))


def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(PlanError, match="device: got 'cuda:7', which is not available here; expected 'cpu'"):
        next(train(toy_plan(device="cuda:7")))


@pytest.mark.parametrize("device", ["mps", "gpu", "cuda:x"])
def test_a_device_of_another_kind_is_refused_without_pytorchs_own_words(device):
    with pytest.raises(PlanError) as error:
        next(train(toy_plan(device=device)))
    assert str(error.value) == f"device: got '{device}', which is not available here; expected 'cpu', or 'cuda'"


@pytest.mark.parametrize("path", ["no.such:task", "toys:nothing", "toys:toy_data"])
def test_an_own_task_that_can_not_be_imported_is_named(path):
    with pytest.raises(PlanError, match=f"task: .*'{path}'"):
        next(train(toy_plan(task=path)))


def test_an_own_task_by_its_name():
    by_name = list(train(toy_plan(task="toys:TOY")))[-1]
    assert torch.equal(by_name.state.weights, list(train(toy_plan()))[-1].state.weights)
