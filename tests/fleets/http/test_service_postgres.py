"""A service whose clients and runs are in PostgreSQL: each run in a schema of its own, by real processes too."""

import pytest
from operated import operating, plan, train

from fedavg.fleets.http.server.store import Store, StoreError
from fleet_peers import until


def test_each_run_has_a_schema_of_its_own(tmp_path, url, postgres):
    with operating(tmp_path, database=url) as service:
        peer = service.peer(10)
        service.submit(plan(seed=1))
        service.submit(plan(seed=2, rounds=2))
        train(peer, 3)
        until(lambda: service.state(2) == "done")
        peer.close()
    assert not list(tmp_path.glob("**/fleet.db*"))
    for number, rounds in ((1, 1), (2, 2)):
        with Store.open(url, f"run_{number}") as store:
            assert store.last_round() == rounds
            assert store.clients() == []
    with Store.open(url) as store:
        assert (store.run(), len(store.clients()), store.last_round()) == (None, 1, 0)


def test_a_service_goes_on_in_postgresql_where_it_was(tmp_path, url):
    with operating(tmp_path, database=url) as service:
        peer = service.peer(10)
        service.submit(plan(rounds=2))
        train(peer, 1)
        peer.offer()
        peer.close()
    with operating(tmp_path, database=url) as service:
        peer._port = service.port
        assert peer.offer()["round"] == 2
        train(peer, 1)
        until(lambda: service.state(1) == "done")
        service.change(1, "extend", {"rounds": 3, "lr": None, "from_round": None})
        train(peer, 1)
        until(lambda: service.state(1) == "done")
        peer.close()


def test_two_services_on_one_database_are_refused(tmp_path, url):
    with operating(tmp_path / "one", database=url) as service:
        refused = pytest.raises(StoreError, match="is in use by fedavg serve 127.0.0.1:.*; only one server may own")
        with refused, operating(tmp_path / "two", database=url):
            pass
        assert service.ask("GET", "/healthz").status == 200
        assert not (tmp_path / "two" / "admin-token").exists()
