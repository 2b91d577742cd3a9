"""Every algorithm, codec and protection gives over the network what it gives in simulation, bit for bit."""

from dataclasses import replace

import pytest
from harness import Fleet
from tiny import FEW, few_plan

import fedavg
from fedavg.programs.servable import Address, Options
from fedavg.programs.serve import serve

PLANS = {
    "fedprox": {"algorithm": "fedprox:0.1"},
    "fedavgm": {"algorithm": "fedavgm:0.9"},
    "fedadam": {"algorithm": "fedadam:lr=0.05"},
    "fednova, momentum": {"algorithm": "fednova", "optimizer": "sgd:momentum=0.9"},
    "scaffold": {"algorithm": "scaffold"},
    "feddyn": {"algorithm": "feddyn:1"},
    "momentum that clients keep": {"optimizer": "sgd:momentum=0.9:keep=true", "rounds": 5},
    "adam, rates by round, no short batch": {"optimizer": "adam", "lr": "cosine:0.01:warmup=1", "drop_last": True},
    "fedbuff": {"algorithm": "fedbuff:3", "rounds": 6},
    "adaptive": {"algorithm": "adaptive:200", "C": 1.0, "E": 1},
    "sparse ternary": {"codec": "stc:0.1"},
    "both directions": {"codec": "stc:0.1", "downlink": "stc:0.1", "rounds": 8},
    "a downlink that is drawn": {"downlink": "quantise:4", "rounds": 4},
    "entropy of quantised": {"codec": "entropy:quantise:4"},
    "adaptive clipping": {"stages": ("clip:0.5:quantile=0.5", "weigh:equal")},
    "a reducer": {"reducer": "trimmed:1", "pre": ("nnm:1",), "C": 1.0},
    "a reducer that draws and remembers": {"reducer": "centred:0.1:2", "pre": ("bucket:2",), "C": 1.0},
    "a sampler that looks back, a deadline": {"sampling": "oort:penalty=0", "closing": "deadline:60", "rounds": 5},
    "secure aggregation": {"secagg": "complete:4:20"},
    "frozen weights": {"adapters": "tiny:LastLayer"},
    "secure aggregation, scaffold": {"algorithm": "scaffold", "secagg": "complete:4:20"},
}


@pytest.mark.slow  # each device imports peft; what is frozen is tested above without
def test_adapters_over_the_network_as_in_simulation(tmp_path):
    plan = few_plan(adapters="lora:2", secagg="complete:4:20", rounds=2)
    with Fleet(tmp_path, plan, len(FEW)) as fleet:
        assert fleet.finished()["model_sha256"] == fedavg.run(plan).summary.model_sha256


@pytest.mark.parametrize("name", PLANS)
def test_over_the_network_as_in_simulation(name, tmp_path):
    plan = few_plan(**{"rounds": 3, **PLANS[name]})
    with Fleet(tmp_path, plan, len(FEW)) as fleet:
        summary = fleet.finished()
    clock = {"world": "always"} if plan.closing != "all" else {}
    simulated = fedavg.run(replace(plan, **clock)).summary
    assert summary["model_sha256"] == simulated.model_sha256
    # Messages of a secure session travel by other ways in simulation.
    assert plan.secagg or summary["bytes_down"] == simulated.bytes_down
    assert summary["rounds"] >= 3


def test_a_server_does_not_ask_real_devices_to_lie(tmp_path):
    plan = few_plan(attack="signflip", attackers=0.4)
    with pytest.raises(fedavg.PlanError, match="attack: got 'signflip', and the clients of a server are real"):
        serve(plan, Options(Address("127.0.0.1", 0), tmp_path))
