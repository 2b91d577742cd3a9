"""The server's side of a session: it collects one message per client and phase, and learns only the sum.

It does no I/O and keeps no time: the caller passes in what arrives (`receive`) and decides when a phase is over
(`advance`), for example when all have answered or at a deadline. A client that has not answered by then has dropped
out. Masked inputs are added as they arrive and not kept. A server that is restarted before the last phase begins a new
session. In the last phase it must continue the old one, saved by `to_bytes()`: clients open one sum per round.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from secrets import SystemRandom
from struct import error as StructError
from struct import pack, unpack_from
from typing import NoReturn

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedavg.secagg import field, masks
from fedavg.secagg.errors import BadMessage, Fault, SecAggError, SessionAbandoned, TermsError
from fedavg.secagg.graph import neighbours
from fedavg.secagg.identity import verified, vouched
from fedavg.secagg.messages import (
    Endorsement,
    KeyAdvert,
    MaskedInput,
    Roster,
    SealedShares,
    SessionMessage,
    ShareDelivery,
    SurvivorSet,
    UnmaskRequest,
    UnmaskShares,
)
from fedavg.secagg.terms import Terms


class SessionStep(IntEnum):
    """What the server is waiting for."""

    KEYS = 1
    SHARES = 2
    INPUTS = 3
    ENDORSEMENTS = 4
    UNMASKING = 5
    OVER = 6


@dataclass(frozen=True)
class Aggregate:
    """The sum of the survivors' ring elements, and which clients dropped out."""

    ring: np.ndarray
    survivors: tuple[int, ...]
    dropped: tuple[int, ...]


class ServerSession:
    """One session with the invited clients. A signed session needs the public key of the `authority` (raw Ed25519)."""

    def __init__(self, terms: Terms, invited: Iterable[int], authority: bytes | None = None) -> None:
        self.terms, self.invited = terms, frozenset(invited)
        if len(self.invited) != terms.encoding.clients:
            raise TermsError(f"{len(self.invited)} clients are invited; the terms are for {terms.encoding.clients}")
        if terms.signed != (authority is not None):
            raise TermsError("a signed session needs the key of an authority, an unsigned one has none")
        self._authority = authority
        self._asked = self.invited
        self._awaited = set(self.invited)
        self._phase = SessionStep.KEYS
        self._adverts: dict[int, KeyAdvert] = {}
        self._neighbours: dict[int, tuple[int, ...]] = {}
        self._keys_in_use: set[bytes] = set()
        self._sealed: dict[int, SealedShares] = {}
        self._shared: frozenset[int] = frozenset()
        self._sum = np.zeros(terms.encoding.length, terms.encoding.dtype)
        self._survivors: set[int] = set()
        self._survivor_set = SurvivorSet(terms.session, (), ())
        self._endorsements: dict[int, Endorsement] = {}
        #: Shares by owner and holder. Every owner is in only one of the two: any other share is refused.
        self._seed_shares: dict[int, dict[int, int]] = {}
        self._key_shares: dict[int, dict[int, int]] = {}
        self._opened_by: set[int] = set()
        self._liars: set[int] = set()

    @property
    def phase(self) -> SessionStep:
        return self._phase

    @property
    def awaited(self) -> frozenset[int]:
        """The clients whose message of this phase has not arrived."""
        return frozenset(self._awaited)

    @property
    def opened(self) -> frozenset[int]:
        """The clients whose sum others were asked to open: it may have been opened, whatever the outcome."""
        return frozenset(self._survivor_set.survivors)

    def receive(self, message: SessionMessage) -> None:
        """Accept a client's message of this phase, or refuse it; a refused message changes nothing."""
        if message.session != self.terms.session:
            raise BadMessage(Fault.WRONG_SESSION, "the message belongs to another session")
        match self._phase, message:
            case SessionStep.KEYS, KeyAdvert():
                self._take(message.client, lambda: self._receive_keys(message))
            case SessionStep.SHARES, SealedShares():
                self._take(message.client, lambda: self._receive_shares(message))
            case SessionStep.INPUTS, MaskedInput():
                self._take(message.client, lambda: self._receive_input(message))
            case SessionStep.ENDORSEMENTS, Endorsement():
                self._take(message.client, lambda: self._receive_endorsement(message))
            case SessionStep.UNMASKING, UnmaskShares():
                self._take(message.client, lambda: self._receive_unmasking(message))
            case _:
                kind = type(message).__name__
                raise BadMessage(
                    Fault.OUT_OF_TURN, f"a {kind} came in phase {self._phase.name}; it is too late or early"
                )

    def advance(self) -> dict[int, SessionMessage]:
        """Close the phase and return the message for each remaining client, or abandon the session."""
        match self._phase:
            case SessionStep.KEYS:
                return self._next(SessionStep.SHARES, self._rosters())
            case SessionStep.SHARES:
                return self._next(SessionStep.INPUTS, self._deliveries())
            case SessionStep.INPUTS if self.terms.signed:
                return self._next(SessionStep.ENDORSEMENTS, self._survivor_sets())
            case SessionStep.INPUTS:
                return self._next(SessionStep.UNMASKING, self._unmask_requests(self._survivor_sets()))
            case SessionStep.ENDORSEMENTS:
                self._check_enough(self._endorsements, "endorsed the survivor set")
                return self._next(SessionStep.UNMASKING, self._unmask_requests(self._endorsements))
        raise SecAggError(Fault.OUT_OF_TURN, f"there is no phase after {self._phase.name}; call finish() once")

    def finish(self) -> Aggregate:
        """Close the last phase: open survivors' seeds and lost clients' masking keys, remove the masks from the sum."""
        if self._phase is not SessionStep.UNMASKING:
            raise SecAggError(Fault.OUT_OF_TURN, f"the session is in phase {self._phase.name}; expected UNMASKING")
        added, subtracted = self._leftover_masks()
        masks.apply_masks(self._sum, subtracted, added)
        self._phase, self._awaited = SessionStep.OVER, set()
        survivors = self._survivor_set.survivors
        return Aggregate(self._sum, survivors, tuple(sorted(self.invited - set(survivors))))

    # --- what is kept ---

    def to_bytes(self) -> bytes:
        """The session at the start of the last phase: the masked sum and what opens it, never a single input."""
        if self._phase is not SessionStep.UNMASKING or self._opened_by:
            raise SecAggError(Fault.OUT_OF_TURN, "a session is saved before the first share of its last phase")
        state = {
            "terms": self.terms.to_json(),
            "invited": sorted(self.invited),
            "adverts": [advert.to_bytes().hex() for advert in self._adverts.values()],
            "neighbours": {str(client): near for client, near in self._neighbours.items()},
            "survivors": self._survivor_set.to_bytes().hex(),
            "endorsements": [each.to_bytes().hex() for each in self._endorsements.values()],
        }
        header = json.dumps(state).encode()
        return pack(">I", len(header)) + header + self._sum.tobytes()

    @classmethod
    def from_bytes(
        cls, data: bytes, authority: bytes | None = None
    ) -> tuple["ServerSession", dict[int, SessionMessage]]:
        """The session as it was saved, and the message of its last phase for each client."""
        try:
            (size,) = unpack_from(">I", data)
            state = json.loads(data[4 : 4 + size])
            session = cls(Terms.from_json(state["terms"]), state["invited"], authority)
            adverts = [KeyAdvert.from_bytes(bytes.fromhex(text)) for text in state["adverts"]]
            session._adverts = {advert.client: advert for advert in adverts}
            session._neighbours = {int(client): tuple(near) for client, near in state["neighbours"].items()}
            survivors = SurvivorSet.from_bytes(bytes.fromhex(state["survivors"]))
            session._shared = frozenset(survivors.survivors + survivors.dropped)
            session._survivors = set(survivors.survivors)
            endorsements = [Endorsement.from_bytes(bytes.fromhex(text)) for text in state["endorsements"]]
            session._endorsements = {each.client: each for each in endorsements}
            session._sum = np.frombuffer(data, session._sum.dtype, offset=4 + size).copy()
        except (ValueError, TypeError, KeyError, StructError, SecAggError) as error:
            raise SecAggError(Fault.MALFORMED, f"not a saved session of a server: {error}") from None
        asked = session._survivor_sets()
        return session, session._next(SessionStep.UNMASKING, session._unmask_requests(session._endorsements or asked))

    @property
    def opened_by(self) -> frozenset[int]:
        """The clients that have sent their shares in the last phase."""
        return frozenset(self._opened_by)

    @property
    def liars(self) -> frozenset[int]:
        """The clients whose shares were found wrong when secrets were opened."""
        return frozenset(self._liars)

    @property
    def can_finish(self) -> bool:
        """Whether there are enough shares for every secret that `finish` has to open."""
        owners = (*self._seed_shares.values(), *self._key_shares.values())
        return self._phase is SessionStep.UNMASKING and all(
            len(held) >= self.terms.topology.threshold for held in owners
        )

    # --- receiving ---

    def _take(self, client: int, keep: Callable[[], None]) -> None:
        if client not in self.invited:
            raise BadMessage(Fault.UNKNOWN_CLIENT, f"client {client} was not invited")
        if client not in self._asked:
            raise BadMessage(Fault.ALREADY_DEAD, f"client {client} has dropped out in an earlier phase")
        if client not in self._awaited:
            raise BadMessage(Fault.DUPLICATE, f"client {client} has answered in this phase")
        keep()
        self._awaited.remove(client)

    def _receive_keys(self, advert: KeyAdvert) -> None:
        self._check_identity(advert)
        keys = {advert.mask_key, advert.share_key}
        if len(keys) < 2 or keys & self._keys_in_use:
            raise BadMessage(Fault.ALTERED_KEYS, f"client {advert.client} advertises a key that is in use")
        if not all(map(masks.usable, keys)):
            raise BadMessage(Fault.ALTERED_KEYS, f"client {advert.client} advertises a degenerate key")
        self._keys_in_use |= keys
        self._adverts[advert.client] = advert

    def _receive_shares(self, message: SealedShares) -> None:
        recipients = tuple(recipient for recipient, _ in message.sealed)
        if recipients != self._neighbours[message.client]:
            raise BadMessage(Fault.BAD_SHARE, f"client {message.client} did not share with exactly its neighbours")
        self._sealed[message.client] = message

    def _receive_input(self, message: MaskedInput) -> None:
        if len(message.vector) != self._sum.nbytes:
            got, expected = len(message.vector), self._sum.nbytes
            raise BadMessage(Fault.MALFORMED, f"client {message.client} sent {got} bytes; expected {expected}")
        self._sum += np.frombuffer(message.vector, self._sum.dtype)
        self._survivors.add(message.client)

    def _receive_endorsement(self, message: Endorsement) -> None:
        statement = self._survivor_set.statement(self.terms.digest)
        if not verified(self._adverts[message.client].identity, message.signature, statement):
            raise BadMessage(Fault.BAD_SIGNATURE, f"the message is not signed by client {message.client}")
        self._endorsements[message.client] = message

    def _receive_unmasking(self, message: UnmaskShares) -> None:
        seeds, keys = self._expected_shares(message.client)
        if [owner for owner, _ in message.seeds] != seeds or [owner for owner, _ in message.keys] != keys:
            raise BadMessage(Fault.BAD_SHARE, f"client {message.client} sent other shares than it was asked for")
        for owner, share in message.seeds:
            self._seed_shares[owner][message.client] = share
        for owner, share in message.keys:
            self._key_shares[owner][message.client] = share
        self._opened_by.add(message.client)

    def _expected_shares(self, holder: int) -> tuple[list[int], list[int]]:
        near = {holder, *self._neighbours[holder]} & self._shared
        return sorted(near & self._survivors), sorted(near - self._survivors)

    def _check_identity(self, advert: KeyAdvert) -> None:
        """Refuse here an advert that would make every honest client leave, so that only its sender is excluded."""
        client = advert.client
        if bool(advert.signature) != self.terms.signed:
            raise BadMessage(Fault.BAD_SIGNATURE, f"client {client}: signed or not, it is not as the terms say")
        if self._authority is None:
            return
        if not vouched(self._authority, advert.identity, advert.voucher):
            raise BadMessage(Fault.NOT_VOUCHED, f"the authority has not vouched for the identity of {client}")
        if any(advert.identity == other.identity for other in self._adverts.values()):
            raise BadMessage(Fault.NOT_VOUCHED, f"client {client} has the identity of another client")
        if not verified(advert.identity, advert.signature, advert.statement(self.terms.digest)):
            raise BadMessage(Fault.BAD_SIGNATURE, f"the message is not signed by client {client}")

    # --- closing phases ---

    def _next(self, phase: SessionStep, messages: dict[int, SessionMessage]) -> dict[int, SessionMessage]:
        self._phase, self._asked, self._awaited = phase, frozenset(messages), set(messages)
        return messages

    def _rosters(self) -> dict[int, SessionMessage]:
        self._check_enough(self._adverts, "sent keys", self.terms.topology.minimum)
        order = sorted(self._adverts)
        SystemRandom().shuffle(order)  # which clients collude must not depend on where they sit on the ring
        self._neighbours = neighbours(order, self.terms.topology.degree)
        return {client: self._roster(client) for client in self._adverts}

    def _roster(self, client: int) -> Roster:
        return Roster(self.terms.session, tuple(self._adverts[c] for c in sorted((client, *self._neighbours[client]))))

    def _deliveries(self) -> dict[int, SessionMessage]:
        self._check_enough(self._sealed, "shared their secrets", self.terms.topology.minimum)
        inboxes: dict[int, list[tuple[int, bytes]]] = {client: [] for client in self._sealed}
        for sender in sorted(self._sealed):
            for recipient, sealed in self._sealed[sender].sealed:
                if recipient in inboxes:
                    inboxes[recipient].append((sender, sealed))
        self._shared = frozenset(self._sealed)
        self._sealed.clear()
        return {client: ShareDelivery(self.terms.session, tuple(inbox)) for client, inbox in inboxes.items()}

    def _survivor_sets(self) -> dict[int, SessionMessage]:
        self._check_enough(self._survivors, "sent their input", self.terms.topology.minimum)
        alive, lost = sorted(self._survivors), sorted(self._shared - self._survivors)
        self._seed_shares, self._key_shares = {owner: {} for owner in alive}, {owner: {} for owner in lost}
        self._survivor_set = SurvivorSet(self.terms.session, tuple(alive), tuple(lost))
        return dict.fromkeys(alive, self._survivor_set)

    def _unmask_requests(self, clients: Iterable[int]) -> dict[int, SessionMessage]:
        return {client: self._unmask_request(client) for client in clients}

    def _unmask_request(self, client: int) -> UnmaskRequest:
        near = sorted({client, *self._neighbours[client]} & self._endorsements.keys())
        sets = self._survivor_set
        return UnmaskRequest(sets.session, sets.survivors, sets.dropped, tuple(self._endorsements[c] for c in near))

    def _check_enough(self, there: Iterable[int], did: str, needed: int | None = None) -> None:
        needed = self.terms.topology.threshold if needed is None else needed
        count = len(set(there))
        if count < needed:
            self._abandon(Fault.TOO_FEW, f"{count} of {len(self.invited)} clients {did}; expected at least {needed}")

    def _abandon(self, reason: Fault, message: str) -> NoReturn:
        phase, self._phase, self._awaited = self._phase.name, SessionStep.OVER, set()
        raise SessionAbandoned(reason, f"the session is abandoned in phase {phase}: {message}")

    # --- unmasking ---

    def _leftover_masks(self) -> tuple[list[bytes], list[bytes]]:
        """Keys of the masks that were added to, and subtracted from, the sum and did not cancel."""
        terms = self.terms.digest
        added = [masks.self_key(self._seed(client), terms, client) for client in self._survivor_set.survivors]
        subtracted: list[bytes] = []
        for lost in self._survivor_set.dropped:
            private = self._masking_key(lost)
            for peer in set(self._neighbours[lost]) & self._survivors:
                key = masks.pairwise_key(masks.agree(private, self._adverts[peer].mask_key), terms, lost, peer)
                (added if masks.sign(peer, lost) > 0 else subtracted).append(key)
        return added, subtracted

    def _seed(self, owner: int) -> bytes:
        binding = self._adverts[owner].commitment
        return self._opened(
            owner, self._seed_shares[owner], lambda seed: masks.commitment(seed, self.terms.digest, owner) == binding
        )

    def _masking_key(self, owner: int) -> X25519PrivateKey:
        public = self._adverts[owner].mask_key
        key = self._opened(
            owner, self._key_shares[owner], lambda key: masks.public_key(masks.private_key(key)) == public
        )
        return masks.private_key(key)

    def _opened(self, owner: int, shares: dict[int, int], fits: Callable[[bytes], bool]) -> bytes:
        """The secret that any t correct shares give. `fits` reveals wrong shares, and so their senders.

        Clients open only one sum per round, so a client that sends a wrong share must not be able to stop it.
        """
        threshold = self.terms.topology.threshold
        if len(shares) < threshold:
            self._abandon(Fault.TOO_FEW, f"{len(shares)} shares of client {owner} arrived; expected {threshold}")
        honest = [holder for holder in sorted(shares) if holder not in self._liars]
        for holders in field.choices(honest, threshold):
            secret = field.fitting(shares, holders, fits)
            if secret is None:
                continue
            if holders != honest[:threshold]:
                self._find_liars(shares, honest, holders, fits)
            return secret
        return self._abandon(
            Fault.BAD_SHARE, f"the shares of client {owner} do not give the secret that it is bound to"
        )

    def _find_liars(
        self, shares: dict[int, int], holders: list[int], right: list[int], fits: Callable[[bytes], bool]
    ) -> None:
        """Find the clients whose share does not match those that gave the secret.

        A few wrong shares can agree with each other. Nobody is accused unless so many agree that this is impossible.
        """
        wrong = {h for h in set(holders) - set(right) if field.fitting(shares, [h, *right[1:]], fits) is None}
        if len(holders) - 2 * len(wrong) >= len(right):
            self._liars |= wrong
