"""A device program that calls the library: federated learning inside an app of your own.

`fedavg join` is a command. An app on a phone or in a clinic has its own loop, its own data and its own idea of when
it has time. It uses `fedavg.Device`: here with digits that stand for what a user drew, a check whether it is
charging, and callbacks when a round was taken part in and when the finished model came.

Run it:
    python examples/device_program.py        # starts a small server of its own on this machine, and joins it

    fedavg serve mnist-2nn --set clients=2 --listen 127.0.0.1:8765 --insecure --run-dir runs/served
    python examples/device_program.py --server http://127.0.0.1:8765 --token-file runs/served/join-token

It prints a line for each round that it took part in, and how well the final model reads the user's own digits.
"""

import argparse
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

import fedavg
from fedavg.tasks import TASKS


class App:
    """What an app would have: the user's data, and the model that it uses."""

    def __init__(self) -> None:
        self.digits = fedavg.load("mnist", "iid", clients=600).client(0)  # 100 of them
        self.module = TASKS["mnist-2nn"].build()

    def examples(self) -> fedavg.Examples:
        """Asked for before each round, so new examples count from the next round on."""
        return self.digits

    def took_part(self, part) -> None:
        print(f"took part in round {part.round}", flush=True)

    def use(self, model) -> None:
        self.module.load_state_dict(model.tensors)
        with torch.no_grad():
            guesses = self.module.eval()(self.digits.x.flatten(1) / 255).argmax(1)
        right = (guesses == self.digits.y).float().mean()
        print(f"model of round {model.round}: reads {right:.0%} of the user's digits", flush=True)


@contextmanager
def own_server(folder: Path, rounds: int) -> Iterator[tuple[str, Path]]:
    """A server for one device, in a process of its own; for real ones see docs/fleet.md."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = {"clients": 1, "C": 1, "rounds": rounds, "lr": 0.1, "eval_every": rounds}
    settings = [word for name, value in options.items() for word in ("--set", f"{name}={value}")]
    command = [sys.executable, "-m", "fedavg", "serve", "mnist-2nn", *settings, "--listen", f"127.0.0.1:{port}"]
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen([*command, "--insecure", "--run-dir", folder / "served"], stdout=log, stderr=log)
        try:
            token = folder / "served/join-token"
            while not token.exists() and server.poll() is None:
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}", token
            server.wait(60)
        finally:
            server.terminate()
            server.wait()


def join(url: str, token: str, state: Path) -> int:
    app = App()
    device = fedavg.Device(
        url,
        {"mnist-2nn"},  # what the owner allows: a server that asks for anything else is refused
        app.examples,
        state=state,  # the device's key and number: keep it from start to start
        token=token,
        connection=fedavg.Connection(insecure=url.startswith("http:")),
        policy=fedavg.Policy(max_rounds_per_day=1000),
        on_round=app.took_part,
        on_model=app.use,
    )
    return device.run()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--server", metavar="URL")
    arguments.add_argument("--token-file", type=Path)
    arguments.add_argument("--state", type=Path, default=Path("device-state"))
    arguments.add_argument("--tiny", action="store_true")
    given = arguments.parse_args()
    if given.server:
        print(f"the run is over after round {join(given.server, given.token_file.read_text().strip(), given.state)}")
        return
    with TemporaryDirectory() as folder, own_server(Path(folder), 2 if given.tiny else 10) as (url, token):
        print(f"the run is over after round {join(url, token.read_text().strip(), Path(folder) / 'state')}")


if __name__ == "__main__":
    main()
