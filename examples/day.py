"""A day in a world: clients sleep, devices differ, and rounds take simulated hours.

Phones train at night, on a charger. Clients live in four time zones, so who is there changes with the hour, and their
devices are faster and slower. The server asks for more clients than it needs and closes a round after a deadline. The
digits that clients have go with their time zone: at any moment the model learns from one part of the world.

Run it:
    python examples/day.py

It prints for each round the simulated hour, how many clients were there, were asked, reported and came too late, and
the accuracy; then the summary of the run. Clients that are too late are not trained, so this costs no more than a plain
run.
"""

import sys

import fedavg

TINY = "--tiny" in sys.argv

plan = fedavg.Plan(
    task="mnist-2nn",
    data="mnist",
    partition="zoned:4",
    clients=200,
    C=0.02 if TINY else 0.1,
    B=20,
    lr=0.1,
    rounds=2 if TINY else 40,
    eval_every=1 if TINY else 4,
    world="diurnal:4:devices=lognormal:speed=5",  # five examples a second on the median phone
    closing="deadline:1800:over=1.3",
)

if __name__ == "__main__":

    def watch(event: fedavg.Event) -> None:
        if isinstance(event, fedavg.Round) and event.test:
            seen = event.world
            hour = seen["closed_s"] / 3600
            counts = f"{seen['there']} there, {seen['asked']} asked, {seen['reported']} reported, {seen['late']} late"
            print(f"round {event.round} at {hour:5.1f} h: {counts}; accuracy {event.test['accuracy']:.3f}", flush=True)

    summary = fedavg.run(plan, watch=watch).summary
    print(f"in all {summary.simulated_s / 3600:.1f} simulated hours, {summary.seconds:.0f} seconds of ours")
    print("reports by time zone:", {zone: round(share, 2) for zone, share in summary.world["groups"].items()})
