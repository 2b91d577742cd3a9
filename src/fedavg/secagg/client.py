"""The client's side of a session. No I/O: the caller carries messages, and saves `to_bytes()` before it sends one.

A client answers each step once. Asked the same again, it gives the same answer, so a lost message may be sent again;
asked anything else, it leaves the session for good and forgets its secrets. Its saved state holds everything that this
requires, so a restart on either side changes nothing.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cached_property
from secrets import token_bytes
from typing import Any, Final, NoReturn

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from fedavg.secagg import field, masks
from fedavg.secagg.errors import BadMessage, ClientAborted, Fault, SecAggError, TermsError
from fedavg.secagg.identity import Signing, verified, vouched
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

#: A sealing key is derived for one direction of one pair in one session, and seals only one text.
_NONCE: Final = bytes(12)


@dataclass(frozen=True, repr=False)
class _Secrets:
    """Four independent 32-byte secrets: two private keys, the seed of the own mask, the source of polynomials."""

    mask_key: bytes
    share_key: bytes
    seed: bytes
    polynomials: bytes

    @cached_property
    def masking(self) -> X25519PrivateKey:
        return masks.private_key(self.mask_key)

    @cached_property
    def sealing(self) -> X25519PrivateKey:
        return masks.private_key(self.share_key)

    @classmethod
    def fresh(cls) -> "_Secrets":
        return cls(*(token_bytes(masks.KEY_BYTES) for _ in range(4)))


@dataclass(frozen=True, repr=False)
class _HeldShares:
    """This client's shares of one owner's two secrets. At most one of them is ever sent."""

    key: int
    seed: int


class ClientSession:
    """One client in one session. `identity` is needed if the terms say signed.

    `least` is the client's own bound: whatever the terms, it opens no sum of fewer clients that it has checked itself.
    """

    def __init__(self, terms: Terms, client: int, identity: Signing | None = None, least: int = 0) -> None:
        if not 0 <= client < 2**32:
            raise TermsError(f"client: got {client}; expected 0 to 2^32 - 1")
        if terms.signed != (identity is not None):
            raise TermsError("a signed session needs an identity, an unsigned one has none")
        if identity and not vouched(identity.authority, identity.public, identity.voucher):
            raise TermsError("the voucher of this client's own key is not one of its authority")
        self.terms, self.client = terms, client
        self._identity, self._least = identity, least
        self._secrets: _Secrets | None = _Secrets.fresh()
        self._aborted: ClientAborted | None = None
        self._roster: Roster | None = None
        self._peers: dict[int, KeyAdvert] = {}
        #: Per peer, the secret from which the sealing keys of both directions are derived.
        self._agreed: dict[int, bytes] = {}
        self._delivery: ShareDelivery | None = None
        self._held: dict[int, _HeldShares] = {}
        #: Digests of what was masked, endorsed and answered: each at most one per session.
        self._done: dict[str, bytes] = {}

    # --- the five steps ---

    def advertise(self) -> KeyAdvert:
        """Phase 1: the public keys."""
        with self._leaving_on_abort() as secrets:
            return self._advert(secrets)

    def share(self, roster: Roster) -> SealedShares:
        """Phase 2: check the neighbours' keys; share both secrets among them, each share sealed for its holder."""
        with self._leaving_on_abort(roster) as secrets:
            if self._roster is None:
                self._accept_roster(roster, secrets)
            self._same(self._roster, roster)
            shares = self._own_shares(secrets, sorted(self._peers))
            sealed = tuple((peer, self._seal(peer, held)) for peer, held in shares.items())
            return SealedShares(self.terms.session, self.client, sealed)

    def mask(self, delivery: ShareDelivery, ring: np.ndarray) -> MaskedInput:
        """Phase 3: open the neighbours' shares; mask the ring elements with those that are still there."""
        encoding = self.terms.encoding
        if ring.dtype != encoding.dtype or ring.shape != (encoding.length,):
            raise ValueError(f"got {ring.dtype} {ring.shape}; expected {encoding.dtype} ({encoding.length},)")
        with self._leaving_on_abort(delivery) as secrets:
            self._after(self._roster, "a roster")
            if self._delivery is None:
                self._accept_delivery(delivery, secrets)
            self._same(self._delivery, delivery)
            # The same masks over two inputs would reveal their difference.
            self._once("input", masks.sha256(ring.tobytes()))
            masked = ring.copy()
            masks.apply_masks(masked, *self._mask_keys(secrets))
            return MaskedInput(self.terms.session, self.client, masked.tobytes())

    def endorse(self, survivors: SurvivorSet) -> Endorsement:
        """Phase 4, signed sessions only: sign the survivor set."""
        with self._leaving_on_abort(survivors):
            self._after(self._done.get("input"), "its input was masked")
            if self._identity is None:
                raise BadMessage(Fault.OUT_OF_TURN, "an unsigned session has no survivor set to endorse")
            self._check_survivors(survivors)
            statement = survivors.statement(self.terms.digest)
            self._once("survivors", masks.sha256(statement))
            return Endorsement(self.terms.session, self.client, self._identity.key.sign(statement))

    def unmask(self, request: UnmaskRequest) -> UnmaskShares:
        """Phase 5: send one share per peer: of its seed if it survived, else of its masking key."""
        with self._leaving_on_abort(request):
            self._after(self._done.get("survivors" if self.terms.signed else "input"), "the steps before it")
            self._check_survivors(request.survivor_set)
            statement = request.survivor_set.statement(self.terms.digest)
            self._once("survivors", masks.sha256(statement))
            if self.terms.signed:
                self._check_endorsements(request, statement)
            survived = self._held.keys() & set(request.survivors)
            seeds = tuple((owner, self._held[owner].seed) for owner in sorted(survived))
            keys = tuple((owner, self._held[owner].key) for owner in sorted(self._held.keys() - survived))
            return UnmaskShares(self.terms.session, self.client, seeds, keys)

    # --- what is kept ---

    def to_bytes(self) -> bytes:
        """All that a restarted client needs to continue, and to keep refusing. It contains secrets: keep it private."""
        state: dict[str, Any] = {"terms": self.terms.to_json(), "client": self.client}
        if self._aborted is not None:
            return json.dumps(state | {"aborted": [self._aborted.reason, str(self._aborted)]}).encode()
        assert self._secrets is not None
        state["secrets"] = {part.name: getattr(self._secrets, part.name).hex() for part in fields(_Secrets)}
        state["roster"] = self._roster and self._roster.to_bytes().hex()
        state["delivery"] = self._delivery and self._delivery.to_bytes().hex()
        state["done"] = {step: digest.hex() for step, digest in self._done.items()}
        return json.dumps(state).encode()

    @classmethod
    def from_bytes(cls, data: bytes, identity: Signing | None = None, least: int = 0) -> "ClientSession":
        """The session as it was saved. What it had received is checked again."""
        try:
            state = json.loads(data)
            session = cls(Terms.from_json(state["terms"]), state["client"], identity, least)
            if "aborted" in state:
                reason, text = state["aborted"]
                session._leave(ClientAborted(Fault(reason), text))
                return session
            secrets = _Secrets(**{name: bytes.fromhex(value) for name, value in state["secrets"].items()})
            session._secrets = secrets
            if state["roster"]:
                session._accept_roster(Roster.from_bytes(bytes.fromhex(state["roster"])), secrets)
            if state["delivery"]:
                session._accept_delivery(ShareDelivery.from_bytes(bytes.fromhex(state["delivery"])), secrets)
            session._done = {step: bytes.fromhex(digest) for step, digest in state["done"].items()}
        except (ValueError, TypeError, KeyError, SecAggError) as error:
            raise BadMessage(Fault.MALFORMED, f"not a saved session of a client: {error}") from None
        return session

    # --- rules for every step ---

    @contextmanager
    def _leaving_on_abort(self, message: SessionMessage | None = None) -> Iterator[_Secrets]:
        if self._aborted is not None:
            raise self._aborted
        assert self._secrets is not None  # only leaving removes them
        if message is not None and message.session != self.terms.session:
            raise BadMessage(Fault.WRONG_SESSION, "the message belongs to another session; start that one instead")
        try:
            yield self._secrets
        except ClientAborted as error:
            self._leave(error)
            raise

    def _leave(self, error: ClientAborted) -> None:
        self._aborted, self._secrets = error, None
        self._agreed, self._held, self._peers, self._roster, self._delivery = {}, {}, {}, None, None

    def _abort(self, reason: Fault, message: str, culprit: int | None = None) -> NoReturn:
        raise ClientAborted(reason, f"client {self.client} leaves the session: {message}", culprit)

    def _after(self, earlier: object, what: str) -> None:
        if earlier is None:
            raise BadMessage(Fault.OUT_OF_TURN, f"client {self.client} cannot do this before {what}")

    def _same(self, accepted: SessionMessage | None, asked: SessionMessage) -> None:
        if accepted != asked:
            self._abort(Fault.SECOND_REQUEST, f"a second, different {type(asked).__name__} arrived")

    def _once(self, step: str, digest: bytes) -> None:
        if self._done.setdefault(step, digest) != digest:
            self._abort(Fault.SECOND_REQUEST, f"it was asked for a second, different {step}")

    # --- phases 1 and 2: keys and shares ---

    def _advert(self, secrets: _Secrets) -> KeyAdvert:
        keys = masks.public_key(secrets.masking), masks.public_key(secrets.sealing)
        binding = masks.commitment(secrets.seed, self.terms.digest, self.client)
        advert = KeyAdvert(self.terms.session, self.client, *keys, binding)
        if self._identity is None:
            return advert
        advert = replace(advert, identity=self._identity.public, voucher=self._identity.voucher)
        return replace(advert, signature=self._identity.key.sign(advert.statement(self.terms.digest)))

    def _accept_roster(self, roster: Roster, secrets: _Secrets) -> None:
        peers = self._checked_peers(roster, secrets)
        self._agreed = {peer: self._agree(secrets.sealing, peer, advert.share_key) for peer, advert in peers.items()}
        self._roster, self._peers = roster, peers

    def _checked_peers(self, roster: Roster, secrets: _Secrets) -> dict[int, KeyAdvert]:
        ids = [advert.client for advert in roster.adverts]
        if ids != sorted(set(ids)):
            self._abort(Fault.DUPLICATE, "the roster names a client twice or is out of order")
        peers = {advert.client: advert for advert in roster.adverts}
        if peers.pop(self.client, None) != self._advert(secrets):
            self._abort(Fault.ALTERED_KEYS, "its own keys are missing from the roster or altered in it")
        topology = self.terms.topology
        if len(peers) > topology.degree:
            self._abort(Fault.BAD_TERMS, f"it has {len(peers)} neighbours; the terms say {topology}")
        if len(peers) < min(topology.degree, topology.minimum - 1):
            self._abort(Fault.TOO_FEW, f"it has {len(peers)} neighbours; the terms say {topology}")
        keys = [key for advert in roster.adverts for key in (advert.mask_key, advert.share_key)]
        if len(set(keys)) < len(keys):
            self._abort(Fault.ALTERED_KEYS, "one key stands in the roster twice")
        for advert in peers.values():
            self._check_signature(advert)
        # Otherwise one colluding device could pose as any number of peers.
        if self.terms.signed and len({advert.identity for advert in roster.adverts}) < len(roster.adverts):
            self._abort(Fault.NOT_VOUCHED, "one identity stands in the roster under two numbers")
        return peers

    def _check_signature(self, advert: KeyAdvert) -> None:
        if bool(advert.signature) != self.terms.signed:
            self._abort(Fault.BAD_SIGNATURE, f"the keys of client {advert.client} are {'un' * self.terms.signed}signed")
        if self._identity is None:
            return
        if not vouched(self._identity.authority, advert.identity, advert.voucher):
            self._abort(Fault.NOT_VOUCHED, f"the authority has not vouched for the identity of client {advert.client}")
        if not verified(advert.identity, advert.signature, advert.statement(self.terms.digest)):
            self._abort(Fault.BAD_SIGNATURE, f"the keys of client {advert.client} are not signed by it")

    def _own_shares(self, secrets: _Secrets, holders: list[int]) -> dict[int, _HeldShares]:
        threshold, terms = self.terms.topology.threshold, self.terms.digest
        key_polynomial = masks.sharing_key(secrets.polynomials, terms, b"masking key")
        seed_polynomial = masks.sharing_key(secrets.polynomials, terms, b"seed")
        keys = field.share(secrets.mask_key, threshold, holders, key_polynomial)
        seeds = field.share(secrets.seed, threshold, holders, seed_polynomial)
        return {holder: _HeldShares(*both) for holder, *both in zip(holders, keys, seeds, strict=True)}

    def _seal(self, peer: int, held: _HeldShares) -> bytes:
        text = held.key.to_bytes(field.SHARE_BYTES, "big") + held.seed.to_bytes(field.SHARE_BYTES, "big")
        return self._cipher(peer, self.client, peer).encrypt(_NONCE, text, self.terms.digest)

    def _cipher(self, peer: int, sender: int, recipient: int) -> AESGCM:
        return AESGCM(masks.sealing_key(self._agreed[peer], self.terms.digest, sender, recipient))

    def _agree(self, private: X25519PrivateKey, peer: int, public: bytes) -> bytes:
        try:
            return masks.agree(private, public)
        except ValueError:
            self._abort(Fault.ALTERED_KEYS, f"a key of client {peer} is degenerate")

    # --- phase 3: the masked input ---

    def _accept_delivery(self, delivery: ShareDelivery, secrets: _Secrets) -> None:
        self._held = self._opened(delivery, secrets)
        self._delivery = delivery

    def _opened(self, delivery: ShareDelivery, secrets: _Secrets) -> dict[int, _HeldShares]:
        senders = [sender for sender, _ in delivery.sealed]
        if senders != sorted(set(senders)):
            self._abort(Fault.DUPLICATE, "the delivery names a sender twice or is out of order")
        if not self._peers.keys() >= set(senders):
            self._abort(Fault.UNKNOWN_CLIENT, "the delivery names a sender that is not a neighbour")
        if len(senders) + 1 < self.terms.topology.threshold:
            needed = self.terms.topology.threshold
            self._abort(Fault.TOO_FEW, f"{len(senders) + 1} of its neighbourhood have shared; expected {needed}")
        held = {sender: self._open(sender, sealed) for sender, sealed in delivery.sealed}
        return held | self._own_shares(secrets, [self.client])

    def _open(self, sender: int, sealed: bytes) -> _HeldShares:
        try:
            text = self._cipher(sender, sender, self.client).decrypt(_NONCE, sealed, self.terms.digest)
        except InvalidTag:
            self._abort(Fault.BAD_SHARE, f"the shares from client {sender} were altered", sender)
        size = field.SHARE_BYTES
        held = _HeldShares(int.from_bytes(text[:size], "big"), int.from_bytes(text[size:], "big"))
        if len(text) != 2 * size or max(held.key, held.seed) >= field.PRIME:
            self._abort(Fault.BAD_SHARE, f"the shares from client {sender} are not two elements of the field", sender)
        return held

    def _mask_keys(self, secrets: _Secrets) -> tuple[list[bytes], list[bytes]]:
        """Keys of the masks to add and to subtract (§4): the own mask, and one with each neighbour that has shared."""
        added = [masks.self_key(secrets.seed, self.terms.digest, self.client)]
        subtracted: list[bytes] = []
        for peer in self._held.keys() - {self.client}:
            agreed = self._agree(secrets.masking, peer, self._peers[peer].mask_key)
            key = masks.pairwise_key(agreed, self.terms.digest, self.client, peer)
            (added if masks.sign(self.client, peer) > 0 else subtracted).append(key)
        return added, subtracted

    # --- phases 4 and 5: the survivor set ---

    def _check_survivors(self, claim: SurvivorSet) -> None:
        survivors, dropped = set(claim.survivors), set(claim.dropped)
        if list(claim.survivors) != sorted(survivors) or list(claim.dropped) != sorted(dropped):
            self._abort(Fault.DUPLICATE, "the survivor set names a client twice or is out of order")
        if self.client not in survivors:
            self._abort(Fault.LISTED_DEAD, "it is not among the survivors although it has sent its input")
        if survivors & dropped:
            self._abort(Fault.DUPLICATE, f"clients {sorted(survivors & dropped)} are listed as alive and as dead")
        listed, shared = survivors | dropped, self._held.keys()
        if dead := listed & (self._peers.keys() - shared):
            self._abort(Fault.ALREADY_DEAD, f"clients {sorted(dead)} were gone before the inputs, yet are listed")
        if self._knows_everyone and listed - shared:
            self._abort(Fault.UNKNOWN_CLIENT, f"clients {sorted(listed - shared)} are not in the session")
        if shared - listed:
            self._abort(Fault.LEFT_OUT, f"clients {sorted(shared - listed)} are listed neither as alive nor as dead")
        topology, near = self.terms.topology, len(survivors & shared)
        if near < self._least:
            self._abort(Fault.TOO_FEW, f"{near} survive of those that it has checked; it asks for {self._least}")
        if len(survivors) < topology.minimum or near < topology.threshold:
            self._abort(
                Fault.TOO_FEW, f"{len(survivors)} survive, {near} of its neighbourhood; the terms say {topology}"
            )

    @property
    def _knows_everyone(self) -> bool:
        return self.terms.sparse is None

    def _check_endorsements(self, request: UnmaskRequest, statement: bytes) -> None:
        """At least t of the neighbourhood were shown the same survivor set (Bonawitz et al., Fig. 4, round 3)."""
        signers = {each.client for each in request.endorsements}
        if len(signers) < len(request.endorsements):
            self._abort(Fault.DUPLICATE, "a client endorses the survivor set twice")
        if not signers <= self._held.keys() & set(request.survivors):
            self._abort(Fault.UNKNOWN_CLIENT, "the survivor set is endorsed by one that is not a surviving neighbour")
        others = [each for each in request.endorsements if each.client != self.client]
        if not all(verified(self._peers[each.client].identity, each.signature, statement) for each in others):
            self._abort(Fault.BAD_SIGNATURE, "an endorsement of the survivor set is not signed by its client")
        if len(others) + 1 < self.terms.topology.threshold:
            needed = self.terms.topology.threshold
            self._abort(Fault.TOO_FEW, f"{len(others) + 1} endorse the survivor set; expected {needed}")


def answer(session: ClientSession, message: SessionMessage | None, ring: Callable[[], np.ndarray]) -> SessionMessage:
    """A client's reply to the server's message (None: the invitation). `ring` is called when it is time to mask."""
    match message:
        case None:
            return session.advertise()
        case Roster():
            return session.share(message)
        case ShareDelivery():
            return session.mask(message, ring())
        case SurvivorSet():
            return session.endorse(message)
        case UnmaskRequest():
            return session.unmask(message)
    raise BadMessage(Fault.OUT_OF_TURN, f"a {type(message).__name__} is not for a client")
