"""A device reports that it takes no part, and why, so that nobody waits for it and the operator knows."""

import logging
from typing import Literal

from fedavg.errors import FedAvgError, FleetError
from fedavg.fleets.http.device.link import Blocked, Link, ServerRefused
from fedavg.fleets.http.device.policy import Declined, Ended, NoModel, OutOfTime
from fedavg.fleets.http.protocol.messages import ReportRequest, UpdateAnswer
from fedavg.fleets.http.protocol.strict import printable
from fedavg.secagg import SecAggError

log = logging.getLogger("fedavg.device")


def report(link: Link, round: int, attempt: int, error: Exception, otherwise: str) -> None:
    """Log what went wrong and tell the server; `otherwise` is the reason if the error has none of its own.

    Round 0 stands for the plan itself. If the server refuses the report, nothing changes.
    """
    kind: Literal["declined", "failed"] = "declined" if isinstance(error, Declined) else "failed"
    reason = error.reason if isinstance(error, Declined | OutOfTime | Ended | NoModel) else otherwise
    reason = error.error if isinstance(error, Blocked) else reason
    if not isinstance(error, FedAvgError):
        log.error("unexpected", exc_info=error)
    log.warning(kind, extra={"round": round, "attempt": attempt, "reason": reason, "detail": str(error)})
    blames = error.culprit if isinstance(error, SecAggError) else None
    message = ReportRequest(round, attempt, kind, reason, blames, printable(str(error), 500))
    try:
        link.ask(UpdateAnswer, "/v1/report", message)
    except ServerRefused as refusal:
        log.warning("report refused", extra={"reason": refusal.error})
    except FleetError as trouble:
        log.warning("report not delivered", extra={"detail": str(trouble)})
