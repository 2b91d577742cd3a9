"""Secure aggregation: the server learns the sum of the clients' vectors and nothing else.

Bonawitz et al. 2017, with the sparse graph of Bell et al. 2020 as an option. Pure state machines: the caller (a local
fleet, HTTP) carries the messages and does all I/O. `docs/secagg.md` has the protocol, the threat model and the costs.
"""

from fedavg.secagg.client import ClientSession, answer
from fedavg.secagg.errors import (
    BadMessage,
    ClientAborted,
    Fault,
    SecAggError,
    SessionAbandoned,
    TermsError,
)
from fedavg.secagg.identity import Signing
from fedavg.secagg.messages import SessionMessage, parse
from fedavg.secagg.ring import DecodedSum, Encoded, Encoding
from fedavg.secagg.server import Aggregate, ServerSession, SessionStep
from fedavg.secagg.simulate import Costs, SimulatedSession, simulate
from fedavg.secagg.terms import Terms

__all__ = [
    "Aggregate",
    "BadMessage",
    "ClientAborted",
    "ClientSession",
    "Costs",
    "DecodedSum",
    "Encoded",
    "Encoding",
    "Fault",
    "SecAggError",
    "ServerSession",
    "SessionAbandoned",
    "SessionMessage",
    "SessionStep",
    "Signing",
    "SimulatedSession",
    "Terms",
    "TermsError",
    "answer",
    "parse",
    "simulate",
]  # fmt: skip
