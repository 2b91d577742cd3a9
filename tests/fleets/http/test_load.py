"""A short version of benchmarks/fleet_load.py: many light clients, slow ones among them, against a real server."""

import asyncio
import importlib.util
import sys
from pathlib import Path
from statistics import median
from time import perf_counter

import pytest

from light_devices import Body, LightClient, poll_body

pytest.importorskip("uvloop")
pytestmark = pytest.mark.alone

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "fleet_load.py"


@pytest.fixture(scope="module")
def load():
    spec = importlib.util.spec_from_file_location("fleet_load", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["fleet_load"] = module
    spec.loader.exec_module(module)
    return module


def test_two_hundred_clients_and_slow_ones_among_them(load):
    """200 clients poll, 25 upload in each of 16 rounds, 50 connections dawdle: nothing is refused or kept."""

    async def scenario():
        with load.serving(clients=201, cohort=25, rounds=16, more=("--min-clients", "200")) as server:
            lot = await load.enrolled(server.at, 200)
            await LightClient(server.at).enrol()  # never polls: the server stays for it when the run is over
            uploads = load.Uploads(lot[0].taken)
            sizes = []
            watching = asyncio.create_task(watch(server, uploads, sizes))
            working = [asyncio.create_task(uploads.work(client)) for client in lot[1:]]
            strangers = [LightClient(server.at) for _ in range(50)]
            cut_after = await load.slowly([b"POST /v1/poll HTTP/1.1\r\nHost: "] * 50, strangers)
            await asyncio.gather(*working, uploads.work(lot[0]))  # the last that was missing: the rounds begin
            watching.cancel()
            return uploads, sizes, cut_after

    uploads, sizes, cut_after = load.loop_run(scenario())
    assert {round: len(spans) for round, spans in uploads.spans.items()} == dict.fromkeys(range(1, 17), 25)
    assert uploads.refusals == {}
    assert uploads.cuts == 0
    assert min(cut_after) > 4
    assert max(cut_after) < 10
    # A round's twenty-five updates of 0.8 MB are 20 MB, so eight rounds that kept theirs would stand 160 MB higher.
    # One round's peak says little: it goes with how many uploads happen to be read at once.
    peaks = {round: max(mb for at, mb in sizes if at == round) for round, _ in sizes}
    early, late = (median(peaks[round] for round in peaks if round in some) for some in (range(5, 9), range(13, 17)))
    assert late - early < 40, peaks


async def watch(server, uploads, sizes):
    while True:
        if uploads.spans:
            sizes.append((max(uploads.spans), server.process.rss_mb()))
        await asyncio.sleep(0.1)


def test_a_slow_body_is_cut_and_a_lost_poll_does_not_take_the_wake_up_of_the_next(load):
    async def scenario():
        with load.serving(clients=4, cohort=4, rounds=1, more=("--min-clients", "4")) as server:
            lot = await load.enrolled(server.at, 3)
            short = asyncio.create_task(lot[0].on_another_connection().poll(poll_body(1, lot[0].taken)))
            await load.until_held(lot[0], 1)
            others = [asyncio.create_task(client.poll(poll_body(50, client.taken))) for client in lot]
            await load.until_held(lot[0], 3)  # one poll of a client is held, the newest
            await short
            held = [await load.held_polls(lot[0])]
            late = LightClient(server.at)
            await late.enrol()
            began = perf_counter()
            await late.poll(poll_body(0, late.taken))  # the fourth: the round begins
            offers = await asyncio.gather(*others)
            woken_after = perf_counter() - began
            held.append(await load.held_polls(lot[0]))
            head = lot[0].head("PUT", "/v1/rounds/1/0/update", Body(bytes(800_000), "0" * 64))
            return offers, held, woken_after, await load.slowly([head], lot[:1])

    offers, held, woken_after, cut_after = load.loop_run(scenario())
    assert [offer["type"] for offer in offers] == ["work"] * 3
    assert held == [3, 0]
    assert woken_after < 20  # they would have waited for 50 s
    assert 7 < cut_after[0] < 10
