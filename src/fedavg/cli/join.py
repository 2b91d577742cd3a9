"""`fedavg join`: a device from the command line. All that it does is `fedavg.Device`."""

import logging
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedavg.cli.asking import FILE, check_url, read_token
from fedavg.errors import FedAvgError, PlanError

if TYPE_CHECKING:
    from collections.abc import Callable

    from fedavg.fleets.http.device.sources import Source
    from fedavg.programs.device import TrainedModel

log = logging.getLogger("fedavg.device")


@click.command()
@click.argument("url")
@click.option("--data", required=True, metavar="PATH|NAME",
              help="Its examples: a file or folder (.npz, .csv, .parquet), read again when it has changed; or a "
              "named data set.")  # fmt: skip
@click.option("--label", help="The column of the label in .csv and .parquet files [label].")
@click.option(
    "--share", metavar="K/N", help="For a named data set: take the part of client K of N, as the simulator would."
)
@click.option("--partition", help="How a named data set is split [its own].")
@click.option("--seed", type=int, help="The seed of that split [0].")
@click.option("--data-dir", type=click.Path(path_type=Path), help="Where named data sets are kept.")
@click.option("--task", "tasks", multiple=True, default=("mnist-2nn",), show_default=True,
              help="A task to train: installed code, never the server's; may be repeated.")  # fmt: skip
@click.option("--allow", multiple=True, metavar="PACKAGE",
              help="A package whose parts (algorithm, codec) the plan may name; may be repeated [none].")  # fmt: skip
@click.option("--token-file", type=FILE, help="A file with the join token; needed the first time.")
@click.option("--state", type=click.Path(path_type=Path), default=Path("device"), show_default=True,
              help="Where this device keeps its key, its number and its last update.")  # fmt: skip
@click.option("--name", default="", help="A name for the operator to see.")
@click.option("--client", type=click.IntRange(0), help="The client number to ask for [any].")
@click.option("--model-out", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Write the trained model here (.safetensors), if the server publishes it.")  # fmt: skip
@click.option("--every-round", is_flag=True, help="Write --model-out after every round that the server publishes.")
@click.option("--device", default="cpu", show_default=True, help="Where to train: cpu or cuda.")
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True,
              help="Threads to train on; with more than one, last bits may differ from a simulation's.")  # fmt: skip
@click.option("--ca", type=FILE, help="The authority of the server's certificate, if it is not a public one.")
@click.option("--cert", type=FILE, help="This device's certificate, if the server asks for one (mTLS).")
@click.option("--key", type=FILE, help="Its private key.")
@click.option("--insecure", is_flag=True, help="Plain HTTP; on loopback only.")
@click.option("--charging", type=click.Choice(["auto", "yes", "no"]), default="auto", show_default=True)
@click.option("--unmetered", type=click.Choice(["auto", "yes", "no"]), default="auto", show_default=True)
@click.option("--idle", type=click.Choice(["auto", "yes", "no"]), default="yes", show_default=True,
              help="Work only while these hold; auto looks at the machine.")  # fmt: skip
@click.option("--authority", type=FILE, metavar="AUTHORITY.PUB",
              help="The public key of the fleet's authority: work only with devices that it vouches for.")  # fmt: skip
@click.option("--authority-url", metavar="URL", help="Ask the authority here for this device's voucher.")
@click.option("--authority-token-file", type=FILE, help="The authority's token, for --authority-url.")
@click.option("--authority-ca", type=FILE, help="The authority of that address's certificate, if not a public one.")
@click.option("--require-secagg", is_flag=True, help="Decline plans without secure aggregation.")
@click.option("--min-cohort", type=click.IntRange(2), metavar="N",
              help="Take part in no sum over fewer clients; needs --require-secagg.")  # fmt: skip
@click.option("--require-dp", type=click.FloatRange(0, min_open=True), metavar="EPSILON",
              help="Decline plans whose rounds together cost more than this, by noise that devices add.")  # fmt: skip
@click.option("--max-epochs", type=click.IntRange(1), metavar="N", help="Decline work of more local epochs.")
@click.option("--max-rounds-per-day", type=click.IntRange(1), metavar="N", help="Take part in no more rounds a day.")
@click.option("--max-epsilon", type=click.FloatRange(min=0, min_open=True),
              help="Stop before all its updates could cost more privacy than this [the plan's].")  # fmt: skip
@click.option("--spent", type=click.Path(path_type=Path),
              help="Where to count the privacy spent: one file for all runs on its data [in --state].")  # fmt: skip
@click.option(
    "--give-up-after", type=float, metavar="SECONDS", help="Stop if the server cannot be reached for this long [never]."
)
def join(url: str, **options: Any) -> None:
    """Take part in the training of the server at URL with the data of this device, until the run is over.

    \b
    fedavg join https://server.example:8443 --data my-examples.npz --token-file join-token
    """
    needs_device_extra()
    from fedavg.cli.authority import identity_source
    from fedavg.fleets.http.device.connection import Connection
    from fedavg.fleets.http.device.eligibility import look
    from fedavg.fleets.http.device.files import private_umask
    from fedavg.fleets.http.device.policy import Policy
    from fedavg.fleets.http.server.logs import log_to_stderr, told_in_the_log
    from fedavg.privacy.served import BudgetSpent
    from fedavg.programs.device import Device

    check_url(url, options["insecure"])
    if options["insecure"] and not any((each or "").startswith("http:") for each in (url, options["authority_url"])):
        raise PlanError(f"--insecure is for plain HTTP; got {url}, which has TLS; leave it out")
    limit, out = options["max_epsilon"], options["model_out"]
    if limit is not None and not isfinite(limit):
        raise PlanError(f"--max-epsilon: got {limit}; expected a finite number above 0")
    if options["every_round"] and out is None:
        raise PlanError("--every-round says when to write --model-out; expected --model-out FILE as well")
    log_to_stderr()
    token_file: Path | None = options["token_file"]
    device = Device(
        url,
        options["tasks"],
        _source(options),
        state=options["state"],
        token=read_token(token_file) if token_file else None,
        name=options["name"],
        client=options["client"],
        allow=options["allow"],
        connection=Connection(
            options["ca"], options["cert"], options["key"], options["insecure"], options["give_up_after"]
        ),
        policy=Policy(
            options["require_secagg"],
            options["min_cohort"] or 0,
            options["require_dp"],
            options["max_epochs"],
            options["max_rounds_per_day"],
        ),
        eligible=lambda: look(options["charging"], options["unmetered"], options["idle"]),
        on_model=_writer(out) if out else None,
        models="rounds" if options["every_round"] else "final",
        device=options["device"],
        threads=options["threads"],
        max_epsilon=limit,
        spent=options["spent"],
        vouched=identity_source(options),
    )
    try:
        with private_umask(), told_in_the_log(BudgetSpent):
            last = device.run()
    except BudgetSpent:
        return
    log.info("ended", extra={"round": last})


def needs_device_extra() -> None:
    """A device needs packages that a simulation does not."""
    try:
        import cryptography  # noqa: F401
        import httpx2  # noqa: F401
    except ImportError as error:
        raise FedAvgError(f"a device needs {error.name}; install it with: pip install 'fedavg[device]'") from None


def _writer(path: Path) -> "Callable[[TrainedModel], None]":
    from safetensors.torch import save

    from fedavg.files import write_atomically

    def write(model: "TrainedModel") -> None:
        write_atomically(path, save(model.tensors))
        log.info("model written", extra={"round": model.round, "file": str(path)})

    return write


def _source(options: dict[str, Any]) -> "Source":
    from fedavg.data import is_named
    from fedavg.fleets.http.device.sources import Files, Share

    named, path = is_named(options["data"]), Path(options["data"])
    if (named or path.suffix == ".npz") and options["label"] is not None:
        raise PlanError(f"--label is for .csv and .parquet files; --data is {options['data']}")
    if not named:
        for name in ("share", "partition", "seed", "data_dir"):
            if options[name] is not None:
                raise PlanError(f"--{name.replace('_', '-')} is for named data sets; --data is {options['data']}")
        return Files(path, options["label"] or "label")
    k, slash, n = (options["share"] or "").partition("/")
    if not slash or not k.isdecimal() or not n.isdecimal() or int(k) >= int(n):
        raise PlanError(f"--share: got '{options['share']}'; expected K/N with K from 0 to N-1, as in 3/8")
    return Share(options["data"], int(k), int(n), options["partition"], options["seed"] or 0, options["data_dir"])
