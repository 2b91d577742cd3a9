"""Compression from the server to the clients."""

from dataclasses import dataclass

import pytest
import torch

import fedavg
from fedavg.algorithms import ALGORITHMS
from fedavg.algorithms.fedavg import FedAvg
from fedavg.codecs import make_codec
from fedavg.codecs.downlink import FRAMES, LENGTHS, RESIDUAL, SEEN, Downlink
from fedavg.errors import PlanError
from fedavg.setup import simulation
from toys import toy_plan

P = 195  # of the toy's model


def rounds(**changes):
    return [event for event in fedavg.train(toy_plan(**changes)) if isinstance(event, fedavg.Round)]


def test_by_hand():
    """topk:0.5 of two numbers sends the larger; what was left out goes into the next change."""
    downlink = Downlink(make_codec("topk:0.5"), seed=0)
    start = torch.tensor([1.0, 1.0])
    first, slots = downlink.send(downlink.initial(start), start, torch.tensor([1.5, 3.0]), [0], 1)
    assert first.tolist() == [1, 3]
    assert slots[RESIDUAL].tolist() == [0.5, 0]
    second, slots = downlink.send(slots, first, torch.tensor([2.0, 4.25]), [1], 2)
    assert second.tolist() == [2.5, 3]  # 1 + 0.5 is more than 1.25
    assert slots[RESIDUAL].tolist() == [0, 1.25]


def test_bytes_by_hand():
    """A whole model is 400 bytes, a frame of topk:0.1 (10 values and their places) about 46."""
    downlink = Downlink(make_codec("topk:0.1"), seed=0)
    weights = torch.zeros(100)
    slots = downlink.initial(weights)
    assert downlink.fetched(slots, [0, 1], 1) == 800  # never seen
    lengths = []
    for round, cohort in enumerate([[0, 1], [0], *[[2]] * 9, [1], [2]], start=1):
        weights, slots = downlink.send(slots, weights, weights + torch.arange(100.0) * round, cohort, round)
        lengths.append(len(downlink.frames(slots)[-1]))
    assert downlink.fetched(slots, [2], 14) == lengths[-1]
    assert downlink.fetched(slots, [2], 13) == 0  # the same model once more
    assert downlink.fetched(slots, [1], 14) == sum(lengths[-2:])
    assert downlink.fetched(slots, [0], 14) == 400  # twelve frames are more than the model
    assert downlink.fetched(slots, [3], 14) == 400
    assert downlink.fetched(slots, [2, 2, 3, 7], 14) == 2 * lengths[-1] + 800  # 7 has just joined
    assert slots[SEEN].tolist() == [2, 12, 13]


def test_frames_lead_from_any_model_that_is_not_too_old_to_the_newest():
    downlink = Downlink(make_codec("stc:0.1"), seed=0)
    newest, models = torch.zeros(100), []
    slots = downlink.initial(newest)
    for round in range(1, 60):
        models.append(newest)
        new = newest + torch.randn(100, generator=torch.Generator().manual_seed(round))
        newest, slots = downlink.send(slots, newest, new, [0], round)
        assert len(slots[FRAMES]) < 400
    frames = downlink.frames(slots)
    assert 5 < len(frames) < 59
    for missed in range(1, len(frames) + 1):
        weights = models[-missed]
        for frame in frames[-missed:]:
            weights = downlink.follow(weights, frame)
        assert torch.equal(weights, newest)


def test_a_client_that_joins_later_has_its_place():
    downlink = Downlink(make_codec("stc:0.5"), seed=0)
    before = torch.zeros(4)
    _, slots = downlink.send(downlink.initial(before), before, torch.ones(4), [5], 1)
    assert slots[SEEN].tolist() == [0, 0, 0, 0, 0, 1]


def test_every_part_keeps_its_own_whatever_the_others_hand_on():
    """The momentum of the server, the norm of the clipping and the frames of the downlink, over several rounds."""
    last = rounds(algorithm="fedavgm", stages=("clip:1.0:quantile=0.5",), downlink="stc:0.5", rounds=3)[-1].state
    assert set(last.slots) == {"v"}
    assert set(last.others["stage 0"]) == {"clip_norm"}
    assert set(last.others["downlink"]) == {RESIDUAL, FRAMES, LENGTHS, SEEN}
    assert float(last.others["stage 0"]["clip_norm"]) != 1.0


def test_float32_sends_the_whole_model_and_changes_nothing():
    plain = rounds()
    assert simulation(toy_plan())[0].downlink is None
    assert all(event.bytes_down == 4 * P * event.clients for event in plain)
    assert plain[-1].state.slots == plain[-1].state.others == {}


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
        simulation(toy_plan(algorithm="two", downlink="stc:0.1"))
    assert simulation(toy_plan(algorithm="two"))[0].downlink is None


def test_a_bad_codec_is_refused():
    with pytest.raises(PlanError, match="got 'zip'; expected one of float32"):
        toy_plan(downlink="zip")
