"""What a device remembers of its work: what it has begun, and what last counted."""

from dataclasses import dataclass

from fedavg.fleets.http.protocol.messages import WorkOffer


@dataclass(frozen=True)
class Pending:
    """Work that was begun, remembered until it is known whether it counted. `token` uploads it anonymously.

    It is noted before the training, which changes what this client keeps between rounds: that change is undone if the
    work does not count.
    """

    round: int
    attempt: int
    model: str
    token: str | None
    trained: bool = False
    accepted: bool = False
    #: The number of examples that the client reported when it trained.
    examples: int = 0

    def answers(self, offer: WorkOffer) -> bool:
        return (self.round, self.attempt, self.model) == (offer.round, offer.attempt, offer.model)


@dataclass(frozen=True)
class Settled:
    """The last round in which an update of this device counted; noted if the device keeps anything between rounds."""

    round: int
