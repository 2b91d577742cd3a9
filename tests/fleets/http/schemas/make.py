"""Makes the fixture that upgrades are tried from: the database of a service as the installed version leaves it.

    PYTHONPATH=tests:tests/fleets/http python tests/fleets/http/schemas/make.py tests/fleets/http/schemas/0.2.0

Run once for each release, and kept: a later version must bring what is there up to date, and go on with it. There are
two clients, of which one is revoked, and three runs: one is over and was extended, one is private and was stopped in
the middle of its second round, one waits with a model to start from.
"""

import sqlite3
import sys
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from operated import operating, plan, train
from safetensors.torch import save
from torch import ones

from fleet_peers import NUMBERS, until

PRIVATE = {"stages": ("clip:0.5", "weigh:equal", "noise:2.0"), "clients": 2, "noise_source": "os", "dp_delta": 1e-3}
INIT = save({"0.weight": ones(16, 8), "0.bias": ones(16), "2.weight": ones(3, 16), "2.bias": ones(3)})


def play(directory: Path) -> bytes:
    """A service's short life; returns the key of the client that is not revoked."""
    with operating(directory) as service:
        peer, gone = service.peer(10), service.peer(7)
        service.submit(plan(seed=1), "over")
        train(peer, 1)
        until(lambda: service.state(1) == "done")
        service.change(1, "extend", {"rounds": 2, "lr": 0.05, "from_round": None})
        train(peer, 1)
        until(lambda: service.state(1) == "done")
        service.revoke(client=gone.k)
        service.submit(plan(seed=2, rounds=3, **PRIVATE), "private")
        service.submit(plan(seed=3), "waits", sha256(INIT).hexdigest())
        token = {"Authorization": f"Bearer {service.admin_token}"}
        assert service.ask("PUT", "/admin/runs/3/model", INIT, token).status == 200
        offer = peer.offer()
        peer.upload(offer, peer.frame(offer, np.ones(NUMBERS), 1.0, metrics={}))
        until(lambda: peer.offer()["round"] == 2)
        peer.close(), gone.close()
        return peer.key.private.private_bytes_raw()


def main(target: Path) -> None:
    with TemporaryDirectory() as folder:
        source = Path(folder)
        target.mkdir(parents=True)
        (target / "client.key").write_text(play(source).hex())
        for name, file in {"service": source, "run_1": source / "runs" / "1", "run_2": source / "runs" / "2"}.items():
            database = sqlite3.connect(file / "fleet.db")
            (target / f"{name}.sql").write_text("\n".join(database.iterdump()) + "\n")
            database.close()
            for record in ("metrics.jsonl", "ledger.jsonl"):
                if (file / record).exists():
                    (target / f"{name}.{record}").write_bytes((file / record).read_bytes())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
