"""Updates from request handlers: each is decoded, checked, added to the sum and forgotten.

Only the sum, the weight and the metrics are kept, and none of them reaches the disk. After a crash the sum is lost,
and the clients, which keep their updates until the round is committed, are asked again.
"""

import logging
import secrets
from collections.abc import Hashable
from dataclasses import replace
from hashlib import sha256
from math import ceil
from time import monotonic
from typing import cast

from fedavg.errors import Diverged
from fedavg.fleets.http.protocol.messages import JudgeOffer, WorkOffer
from fedavg.fleets.http.protocol.wire import Expected, UpdateFault, UpdateRefused, decode_update, max_frame_bytes
from fedavg.fleets.http.server.claims import Claims
from fedavg.fleets.http.server.collecting import Collecting
from fedavg.fleets.http.server.guards import Guards
from fedavg.fleets.http.server.metrics import Updates
from fedavg.fleets.http.server.presence import Presence
from fedavg.fleets.http.server.rounds import Receipt, RoundPhase
from fedavg.fleets.http.server.shared import Shared
from fedavg.fleets.http.server.underway import Collected, Received, UnderWay
from fedavg.sums import TooLarge
from fedavg.types import Update

log = logging.getLogger("fedavg.fleet")


class Intake:
    """Thread-safe; every method takes the locks by itself."""

    def __init__(
        self,
        guards: Guards,
        shared: Shared,
        presence: Presence,
        collecting: Collecting,
        updates: Updates,
        claims: Claims,
    ) -> None:
        self._guards, self._shared, self._presence = guards, shared, presence
        self._collecting, self._updates, self._claims = collecting, updates, claims

    def offer(self, k: int) -> WorkOffer | JudgeOffer | None:
        """What an invited client is asked for; None if it already received its one upload token."""
        with self._shared.changed:
            current = self._collecting.current
            collected = current.group_of(k) if current else None
            if not current or not collected:
                return None
            offer = replace(collected.group.offer, deadline_s=max(0.0, current.round.deadline - monotonic()))
            if not self._guards.anonymous:
                return offer
            # A token is given once. The server records that this client received a token, but not which one.
            if k in current.given:
                return None
            current.given.add(k)
            token = secrets.token_urlsafe(32)
            collected.tokens.add(sha256(token.encode()).digest())
            return replace(offer, upload_token=token)

    def token_source(self, token: str) -> bytes | None:
        """The source of an anonymous update, if the token was given out in this round."""
        hashed = sha256(token.encode()).digest()
        with self._shared.changed:
            current = self._collecting.current
            return hashed if current and current.group_of(hashed) else None

    def frame_limit(self) -> int:
        """The longest upload that the round under way can need."""
        with self._shared.changed:
            current = self._collecting.current
            if not current:
                return 0
            if current.session:
                return current.session.longest_message
            expected = current.collected[0].group.expected
            return max_frame_bytes(expected.numbers, expected.codec)

    def judge(self, source: Hashable, round: int, attempt: int) -> Receipt:
        """What would become of an update or a session message; asked before it is read."""
        with self._shared.changed:
            current = self._collecting.current
            if not current or self._shared.stopping:
                return Receipt.WRONG_ROUND
            if source in self._presence.revoked:
                return Receipt.NOT_INVITED
            return current.round.judge(source, round, attempt)

    def add(self, source: int | bytes, round: int, attempt: int, frame: bytes | memoryview) -> Receipt:
        """Check an update and add it to the sum, once; raises UpdateRefused if it is not what was asked for."""
        with self._shared.changed:
            current = self._collecting.current
            collected = current.group_of(source) if current else None
        if not current or not collected:
            return Receipt.NOT_INVITED
        decoded = decode_update(frame, self._bounded(collected, source))
        update = collected.group.arrived(decoded.vector, min(decoded.weight, current.weight_cap))
        seen = collected.group.see(update)
        with self._collecting.adding:
            verdict = self.judge(source, round, attempt)
            if verdict is not Receipt.ACCEPTED:
                return verdict
            if current is not self._collecting.current or current.session:
                return Receipt.WRONG_ROUND
            verdict = self._claims.claim(source, round, attempt)
            if verdict is Receipt.DUPLICATE:  # another replica's sum has it: do not ask the client for it here either
                self._note_accepted(current, source)
            if verdict is not Receipt.ACCEPTED:
                return verdict
            try:
                size = _add(collected, source, update)
            except UpdateRefused:
                self._claims.release(source, round, attempt)
                raise
            with self._shared.changed:
                if isinstance(source, int):
                    collected.sizes[source] = size
                    collected.sources.add(source)
                client = source if isinstance(source, int) else None
                measured = {**decoded.metrics, **cast(dict[str, float], update.metrics)}
                collected.received.append(
                    Received(update.weight, measured, len(frame), client, seen, monotonic() - current.began)
                )
                self._updates.capped += decoded.weight > current.weight_cap
                self._updates.accepted += 1
            self._note_accepted(current, source)
            return verdict

    def _note_accepted(self, current: UnderWay, source: Hashable) -> None:
        with self._shared.changed:
            current.round.accept(source)
            if current.round.phase is not RoundPhase.COLLECTING:
                self._shared.changed.notify_all()

    def _bounded(self, collected: Collected, source: int | bytes) -> Expected:
        """No client counts for more than the examples that it declared, nor reports metrics that they cannot give."""
        expected = collected.group.expected
        most = expected.max_weight
        if isinstance(source, int):
            most = min(most, *self._presence.examples([source]))
        return replace(expected, max_weight=most, metric_bounds=collected.group.metric_bounds(ceil(most)))

    def refuse(self, source: Hashable, round: int, attempt: int, reason: str) -> None:
        """Count a refused update, and do not ask its client again: it would send the same update."""
        with self._shared.changed:
            self._updates.refused[reason] += 1
        client = source if isinstance(source, int) else None
        log.warning("update refused", extra={"client": client, "round": round, "attempt": attempt, "reason": reason})
        if client is not None:
            self._collecting.fail(client, round, attempt, f"refused: {reason}")


def _add(collected: Collected, source: int | bytes, update: Update) -> float:
    try:
        return collected.add(source, update)
    except TooLarge as error:
        raise UpdateRefused(UpdateFault.SHARE_EXCEEDED, str(error)) from None
    except Diverged as error:
        raise UpdateRefused(UpdateFault.NOT_FINITE, str(error)) from None
