"""Compression from the server to the clients."""

from dataclasses import dataclass

import pytest
import torch

import fedavg
from fedavg.algorithms import ALGORITHMS
from fedavg.algorithms.fedavg import FedAvg
from fedavg.codecs import make_codec
from fedavg.downlink import FRAMES, RESIDUAL, SEEN, Downlink
from fedavg.errors import PlanError
from fedavg.setup import resolve
from fedavg.types import State
from toys import toy_plan

P = 195  # of the toy's model


def rounds(**changes):
    return [event for event in fedavg.train(toy_plan(**changes)) if isinstance(event, fedavg.Round)]


def test_by_hand():
    """topk:0.5 of two numbers sends the larger; what was left out goes into the next change."""
    downlink = Downlink(make_codec("topk:0.5"), seed=0)
    start = downlink.initial(State(torch.tensor([1.0, 1.0])), population=3)
    first = downlink.send(start, State(torch.tensor([1.5, 3.0]), start.slots), [0], 1)
    assert first.weights.tolist() == [1, 3]
    assert first.slots[RESIDUAL].tolist() == [0.5, 0]
    second = downlink.send(first, State(torch.tensor([2.0, 4.25]), first.slots), [1], 2)
    assert second.weights.tolist() == [2.5, 3]  # 1 + 0.5 is more than 1.25
    assert second.slots[RESIDUAL].tolist() == [0, 1.25]


def test_bytes_by_hand():
    """A whole model is 400 bytes, a frame of topk:0.1 (10 values and their places) about 46."""
    downlink = Downlink(make_codec("topk:0.1"), seed=0)
    state = downlink.initial(State(torch.zeros(100)), population=4)
    assert downlink.fetched(state, [0, 1], 1) == 800  # never seen
    lengths = []
    for round, cohort in enumerate([[0, 1], [0], *[[2]] * 9, [1], [2]], start=1):
        new = State(state.weights + torch.arange(100.0) * round, state.slots)
        state = downlink.send(state, new, cohort, round)
        lengths.append(len(downlink.frames(state)[-1]))
    assert downlink.fetched(state, [2], 14) == lengths[-1]
    assert downlink.fetched(state, [2], 13) == 0  # the same model once more
    assert downlink.fetched(state, [1], 14) == sum(lengths[-2:])
    assert downlink.fetched(state, [0], 14) == 400  # twelve frames are more than the model
    assert downlink.fetched(state, [3], 14) == 400
    assert downlink.fetched(state, [2, 2, 3, 7], 14) == 2 * lengths[-1] + 800  # 7 has just joined
    assert state.slots[SEEN].tolist() == [2, 12, 13, 0]


def test_frames_lead_from_any_model_that_is_not_too_old_to_the_newest():
    downlink = Downlink(make_codec("stc:0.1"), seed=0)
    state, models = downlink.initial(State(torch.zeros(100)), population=1), []
    for round in range(1, 60):
        models.append(state.weights)
        new = State(state.weights + torch.randn(100, generator=torch.Generator().manual_seed(round)), state.slots)
        state = downlink.send(state, new, [0], round)
        assert len(state.slots[FRAMES]) < 400
    frames = downlink.frames(state)
    assert 5 < len(frames) < 59
    for missed in range(1, len(frames) + 1):
        weights = models[-missed]
        for frame in frames[-missed:]:
            weights = downlink.follow(weights, frame)
        assert torch.equal(weights, state.weights)


def test_a_client_that_joins_later_has_its_place():
    downlink = Downlink(make_codec("stc:0.5"), seed=0)
    before = downlink.initial(State(torch.zeros(4)), population=2)
    after = downlink.send(before, State(torch.ones(4), before.slots), [5], 1)
    assert after.slots[SEEN].tolist() == [0, 0, 0, 0, 0, 1]


def test_what_other_parts_keep_is_left_alone():
    downlink = Downlink(make_codec("stc:0.5"), seed=0)
    before = downlink.initial(State(torch.zeros(4), {"momentum": torch.ones(4)}), population=2)
    after = State(torch.ones(4), {"momentum": torch.full((4,), 2.0)})  # an algorithm that hands on only its own
    assert downlink.send(before, after, [0], 1).slots["momentum"].tolist() == [2, 2, 2, 2]


def test_float32_sends_the_whole_model_and_changes_nothing():
    plain = rounds()
    assert resolve(toy_plan()).downlink is None
    assert all(event.bytes_down == 4 * P * event.clients for event in plain)
    assert plain[-1].state.slots == {}


def test_a_lossless_downlink_gives_the_same_model_up_to_rounding():
    compressed, plain = rounds(downlink="entropy:float32", rounds=3), rounds(rounds=3)
    torch.testing.assert_close(compressed[-1].state.weights, plain[-1].state.weights, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("codec", ["stc:0.1", "quantise:4", "lowrank:2"])
def test_a_compressed_downlink_learns_and_is_cheaper(codec):
    compressed = rounds(downlink=codec, rounds=25)
    assert compressed[0].bytes_down == 4 * P * compressed[0].clients
    assert sum(event.bytes_down for event in compressed) < 0.6 * 25 * compressed[0].bytes_down
    assert compressed[-1].test["accuracy"] > 0.85


def test_the_number_of_workers_changes_nothing():
    settings = {"codec": "stc:0.1", "downlink": "quantise:4", "rounds": 5}
    one, two = (rounds(workers=workers, **settings)[-1] for workers in (1, 2))
    assert torch.equal(one.state.weights, two.state.weights)
    assert (one.bytes_up, one.bytes_down) == (two.bytes_up, two.bytes_down)


def test_an_algorithm_that_shares_more_than_weights_is_refused(monkeypatch):
    @dataclass(frozen=True)
    class TwoVectors(FedAvg):
        name = "two"
        vectors_down = 2

    monkeypatch.setitem(ALGORITHMS, "two", TwoVectors)
    with pytest.raises(PlanError, match="'stc:0.1' with algorithm 'two', which shares 2 vectors"):
        resolve(toy_plan(algorithm="two", downlink="stc:0.1"))
    assert resolve(toy_plan(algorithm="two")).downlink is None


def test_a_bad_codec_is_refused():
    with pytest.raises(PlanError, match="got 'zip'; expected one of float32"):
        toy_plan(downlink="zip")
