"""The summary of a run, for people."""

from fedavg.cli.report import _target_rows


def test_what_a_target_took_in_a_world_is_told():
    world = {"hours_to_target": 1.4321, "bytes_to_target": 2_500_000, "staleness": 4.81}
    assert _target_rows(world) == [
        ("to the target", "1.43 simulated hours, 2.5 MB"),
        ("staleness", "4.8 rounds on average"),
    ]
    assert _target_rows({"hours_to_target": None, "bytes_to_target": None}) == []
