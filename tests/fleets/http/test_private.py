"""Privacy over the network: real servers and devices, and what the ledger says of what they really did."""

from fleet_peers import Peer, fleet_plan, serving


def test_a_number_of_k_or_above_is_refused_and_makes_no_cohort_larger(tmp_path):
    """With K = 3 and C = 1/3 a cohort is one client; a client 1048575 would have made it everybody."""
    plan = fleet_plan(clients=3, C=1 / 3, rounds=100)
    with serving(tmp_path, plan, minimum=3) as served:
        assert Peer(served.port).enrol(served.join_token, client=2**20 - 1).error == "number-too-large"
        assert Peer(served.port).enrol(served.join_token, client=3).error == "number-too-large"
        peers = [served.peer() for _ in range(3)]
        assert sorted(peer.k for peer in peers) == [0, 1, 2]
        assert Peer(served.port).enrol(served.join_token).error == "number-too-large", "all of K are there"
        for peer in peers:
            peer.poll()
        kinds = [peer.poll(1.0).json["type"] for peer in peers]
        assert kinds.count("work") == 1
