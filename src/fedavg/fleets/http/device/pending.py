"""What a device remembers of its work: what it has begun, and what counted last."""

from dataclasses import dataclass

from fedavg.fleets.http.protocol.messages import WorkOffer


@dataclass(frozen=True)
class Pending:
    """Work that was begun, and is remembered until it is known whether it counted. `token` uploads it without a name.

    It is noted before the training, which changes what this client keeps between rounds: that is taken back should the
    work come to nothing.
    """

    round: int
    attempt: int
    model: str
    token: str | None
    trained: bool = False
    accepted: bool = False
    #: What the server was told that the client has when it was trained.
    examples: int = 0

    def answers(self, offer: WorkOffer) -> bool:
        return (self.round, self.attempt, self.model) == (offer.round, offer.attempt, offer.model)


@dataclass(frozen=True)
class Settled:
    """The last round that an update of this device counted in, noted where the device keeps something by it."""

    round: int
