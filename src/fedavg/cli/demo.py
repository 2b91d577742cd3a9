"""`fedavg fleet-demo`: the newcomer's first look at the real thing. Nothing in it is simulated but the comparison."""

import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from fedavg.cli.sleepers import Sleepers
from fedavg.errors import FleetError, PlanError
from fedavg.fleets.http.protocol.certs import make_certificates, server_context
from fedavg.fleets.http.server.rounds import Rules
from fedavg.plan import Plan
from fedavg.programs.servable import Address, Options
from fedavg.programs.serve import JOIN_TOKEN, serve
from fedavg.runner import run
from fedavg.server import Event, Round
from fedavg.world import World

#: Rounds of a fleet that sleeps end soon, so that a client that was killed does not hold up the others for long.
SLEEPY: Final = Rules(deadline_s=20.0)
#: Seconds to wait for those who sleep when the run is over.
SLEEPY_LINGER_S: Final = 3.0


@dataclass(frozen=True)
class ClientHours:
    """When client processes are there: by a world of which an hour takes `hour_s` seconds."""

    world: World
    hour_s: float


def demonstrate(
    plan: Plan, run_dir: Path | None, say: Callable[[str], None], schedule: ClientHours | None = None
) -> dict[str, Any]:
    """Run the fleet, then the same plan in simulation, and give the digests of both models.

    With a schedule processes come and go by it, and nothing is simulated: nobody knows at which moment of a round a
    process is killed.
    """
    if (plan.task, plan.data) != ("mnist-2nn", "mnist") or not plan.clients:
        raise PlanError(
            f"the demonstration: got task '{plan.task}', data '{plan.data}', clients {plan.clients}; expected "
            "mnist-2nn, mnist and a number of clients. For others use 'fedavg serve' and 'fedavg join'"
        )
    clients, partition = plan.clients, str(plan.partition or "iid")
    if schedule:
        schedule.world.presence(clients, plan.seed)  # a world that has no place for this many is refused at once
    directory = run_dir or Path("runs") / f"fleet-demo-{datetime.now():%Y%m%d-%H%M%S}"
    made = make_certificates(directory / "certificates", ["127.0.0.1", "localhost"])
    tls = server_context(made.server.certificate, made.server.key)
    sleepers: Sleepers | None = None
    with ExitStack() as stack:

        def start_clients(port: int) -> None:
            nonlocal sleepers

            def start(k: int) -> "subprocess.Popen[bytes]":
                return _start_client(k, clients, partition, plan.seed, port, directory, made.ca.certificate)

            if schedule is None:
                say(f"server at https://127.0.0.1:{port}; starting {clients} clients")
                for k in range(clients):
                    stack.callback(_end, start(k))
                return
            say(f"server at https://127.0.0.1:{port}; {clients} clients come and go by {schedule.world}")
            sleepers = Sleepers(schedule.world, clients, plan.seed, schedule.hour_s, start)
            stack.callback(sleepers.end)
            sleepers.begin()

        def watch(event: Event) -> None:
            if isinstance(event, Round):
                accuracy = f"{event.test['accuracy']:.4f}" if event.test else "-"
                say(f"round {event.round}/{plan.rounds}  {event.clients} clients  accuracy {accuracy}")

        options = Options(Address("127.0.0.1", 0), directory, tls=tls, minimum=clients)  # all, as in the simulation
        if schedule:
            options = replace(options, minimum=1, rules=SLEEPY, linger_s=SLEEPY_LINGER_S)
        fleet = serve(plan, options, watch, start_clients)
    if sleepers and sleepers.failed:
        raise FleetError(f"clients {sleepers.failed} failed; their logs say why ({directory}/device-*/log)")
    simulated = None
    if not schedule and plan.noise_source == "seeded":  # with noise from OS entropy no two runs are alike
        say("the same plan in simulation")
        simulated = run(plan).summary.model_sha256
    return {
        "model_sha256": fleet.summary.model_sha256,
        "simulated_sha256": simulated,
        "rounds": fleet.summary.rounds,
        "clients": clients,
        "started": sleepers.started if sleepers else clients,
        "killed": sleepers.killed if sleepers else 0,
        "accuracy": fleet.summary.final_accuracy,
        "bytes_up": fleet.summary.bytes_up,
        "bytes_down": fleet.summary.bytes_down,
        "run_dir": str(directory),
    }


def _start_client(
    k: int, clients: int, partition: str, seed: int, port: int, directory: Path, ca: Path
) -> "subprocess.Popen[bytes]":
    state = directory / f"device-{k}"
    state.mkdir(exist_ok=True)
    command = [
        sys.executable, "-m", "fedavg", "join", f"https://127.0.0.1:{port}", "--data", "mnist",
        "--share", f"{k}/{clients}", "--partition", partition, "--seed", str(seed), "--client", str(k),
        "--ca", str(ca),
        "--token-file", str(directory / JOIN_TOKEN), "--state", str(state), "--give-up-after", "60",
    ]  # fmt: skip
    with (state / "log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """A client ends by itself when it learns that the run is over; one that does not is stopped."""
    try:
        code = process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return
    if code:
        raise FleetError(f"a client ended with exit code {code}; its log says why (device-*/log)")
