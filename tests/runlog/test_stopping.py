import pytest

import fedavg
from fedavg import Patience
from fedavg.errors import PlanError, RunDirError
from toys import TOY, toy_data, toy_plan


def test_patience_counts_evaluations_without_a_better_value(tmp_path):
    plan = toy_plan(rounds=20, lr=1e-9, eval_every=2)
    result = fedavg.run(plan, tmp_path / "run", stop=Patience("loss", 2, higher_is_better=True))
    assert result.summary.status == "ended by its stop rule"
    assert result.summary.rounds < 20
    assert fedavg.resume(tmp_path / "run", task=TOY, data=toy_data()).summary.rounds == 20


def test_any_function_of_a_round_ends_a_run():
    result = fedavg.run(toy_plan(rounds=9), stop=lambda event: event.round == 4)
    assert (result.summary.rounds, result.rounds.tolist()) == (4, [1, 2, 3, 4])


def test_mistakes_are_told(tmp_path):
    with pytest.raises(PlanError, match=r"Patience\('mine', 3, higher_is_better=True\)"):
        Patience("mine", 3)
    with pytest.raises(PlanError, match="got 0 evaluations"):
        Patience("loss", 0)
    with pytest.raises(PlanError, match="stop: got 3; expected a function"):
        fedavg.run(toy_plan(), stop=3)
    with pytest.raises(RunDirError, match="expected 'error', 'resume' or 'new'"):
        fedavg.run(toy_plan(), tmp_path / "run", exist="maybe")
    with pytest.raises(RunDirError, match="without a run directory"):
        fedavg.run(toy_plan(), exist="resume")
