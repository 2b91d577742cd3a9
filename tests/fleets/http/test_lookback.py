"""What a server remembers of its devices."""

import numpy as np
import torch

from fedavg.fleets.fleet import Abandoned, CohortResult
from fedavg.fleets.http.server.lookback import Lookback, losses_of, seconds_of
from fedavg.fleets.http.server.underway import Received
from fedavg.types import Population, Sum


def present(*sizes):
    return Population(len(sizes), np.array(sizes))


def test_who_was_there_asked_and_reported_is_counted_and_more_may_enrol():
    known = Lookback(wanted=True)
    known.memory(present(5, 0))
    known.learn(1, [0], [], Abandoned("nobody came"))
    known.memory(present(5, 7, 3))
    total = Sum(torch.zeros(1), 3.0, 1, {})
    known.learn(1, [2, 0], [2], CohortResult(total, 0, 0, 0, losses={2: 0.5}, seconds={2: 4.0}))
    memory = known.memory(present(5, 7, 3))
    assert memory.rounds == 2
    assert memory.there.tolist() == [2, 1, 1]
    assert memory.asked.tolist() == [2, 0, 1]
    assert memory.reported.tolist() == [0, 0, 1]
    assert (memory.last[2], memory.loss[2], memory.seconds[2]) == (1, 0.5, 4.0)
    again = Lookback(wanted=True)
    again.recall(known.slots())
    assert again.memory(present(5, 7, 3)).reported.tolist() == [0, 0, 1]


def test_nothing_is_kept_for_a_sampler_that_does_not_look_back():
    known = Lookback(wanted=False)
    assert known.memory(present(5)) is None
    known.learn(1, [0], [0], Abandoned("nobody came"))
    assert known.slots() == {}


def test_losses_and_durations_are_those_of_clients_known_by_name():
    named = Received(3.0, {"train_loss": 0.25}, 9, client=4, seconds=1.5)
    nameless = Received(1.0, {"train_loss": 0.75}, 9)
    totals = [(torch.zeros(1), {}, [named]), (torch.zeros(1), {}, [nameless])]
    assert losses_of(totals) == {4: 0.25}
    assert seconds_of(totals) == {4: 1.5}
