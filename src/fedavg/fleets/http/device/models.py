"""How a device gets the model of an offer: whole, or by the changes since its last model.

Either way, the bytes must have the offered SHA-256. With a compressed downlink the device keeps the last model, so that
next time it needs only the changes.
"""

import logging
from hashlib import sha256
from struct import Struct
from typing import Final

import numpy as np
import torch
from torch import Tensor

from fedavg.codecs.downlink import Downlink
from fedavg.errors import DataError
from fedavg.fleets.http.device.files import DeviceFiles
from fedavg.fleets.http.device.link import BadAnswer, Latest, Link, ServerRefused
from fedavg.fleets.http.device.policy import NoModel
from fedavg.fleets.http.protocol import changes
from fedavg.fleets.http.protocol.messages import DoneAnswer, JudgeOffer, WorkOffer

log = logging.getLogger("fedavg.device")

#: The round of the kept model; it is stored before the model's bytes.
_ROUND: Final = Struct("<Q")
_FILE: Final = "model"


class Models:
    """The models of a server, as one device fetches them."""

    def __init__(self, link: Link, files: DeviceFiles, downlink: Downlink | None) -> None:
        self._link, self._files, self._downlink = link, files, downlink

    def fetch(self, offer: WorkOffer) -> bytes:
        """The bytes of the offered model, checked against their digest."""
        if self._downlink is None:
            return self.whole(offer)
        data = self._followed(offer, self._downlink) or self.whole(offer)
        self._files.write(_FILE, _ROUND.pack(offer.round) + data)
        return data

    def whole(self, offer: WorkOffer | JudgeOffer) -> bytes:
        """All bytes of a model, which is not kept."""
        try:
            data = self._link.download(f"/v1/models/{offer.model}", 4 * offer.numbers)
        except (ServerRefused, BadAnswer) as error:
            raise NoModel(f"the model {offer.model[:16]}… cannot be fetched: {error}") from None
        if len(data) != 4 * offer.numbers or not _is(data, offer):
            raise NoModel(f"the model that came does not have the SHA-256 {offer.model[:16]}…")
        log.info("fetched", extra={"round": offer.round, "changes": None})
        return data

    def final(self, done: DoneAnswer, size: int) -> Latest | None:
        """The model of a run that is over, of `size` bytes, checked against its digest; None if it is not available."""
        try:
            data = self._link.download(f"/v1/models/{done.model}", size)
        except ServerRefused as refusal:
            log.warning("no model is published", extra={"round": done.round, "reason": refusal.error})
            return None
        digest = sha256(data).hexdigest()
        if digest != done.model:
            log.warning("the model that came is not the run's", extra={"round": done.round, "model": digest})
            return None
        return Latest(done.round, digest, data)

    def _followed(self, offer: WorkOffer, downlink: Downlink) -> bytes | None:
        """The model by its changes; None if this device has no model to apply them to."""
        kept = self._files.read(_FILE) if self._files.exists(_FILE) else b""
        if len(kept) != _ROUND.size + 4 * offer.numbers:
            return None
        missed = offer.round - _ROUND.unpack_from(kept)[0]
        weights = torch.from_numpy(np.frombuffer(kept, "<f4", offset=_ROUND.size).astype(np.float32))
        # Changes are smaller than the whole model, and each has at least one byte after its length. An offer of more
        # changes is a lie that would raise the limit on the bytes read.
        if not 0 <= missed <= min(offer.changes, changes.most(4 * offer.numbers)):
            return None
        try:
            for frame in self._changes(offer, missed):
                weights = downlink.follow(weights, frame)
        except (DataError, ServerRefused) as error:
            log.warning("fetching the whole model", extra={"round": offer.round, "detail": str(error)})
            return None
        data = weights.numpy().astype("<f4", copy=False).tobytes()
        if not _is(data, offer):
            log.warning("fetching the whole model", extra={"round": offer.round, "detail": "changes lead elsewhere"})
            return None
        log.info("fetched", extra={"round": offer.round, "changes": missed})
        return data

    def _changes(self, offer: WorkOffer, count: int) -> list[bytes]:
        if not count:
            return []
        limit = changes.longest(count, 4 * offer.numbers)
        return changes.split(self._link.download(f"/v1/models/{offer.model}/changes/{count}", limit), count)


def numbers_of(data: bytes) -> Tensor:
    """The numbers of a received model, shape (P,) float32."""
    numbers = torch.from_numpy(np.frombuffer(data, "<f4").astype(np.float32))
    if not bool(torch.isfinite(numbers).all()):
        raise NoModel("the model that came holds NaN or infinity")
    return numbers


def _is(data: bytes, offer: WorkOffer | JudgeOffer) -> bool:
    return sha256(data).hexdigest() == offer.model
