"""Secure aggregation: the server learns the sum of the clients' vectors and nothing else.

Bonawitz et al. 2017, with the sparse graph of Bell et al. 2020 as an option. Pure state machines: whoever carries the
messages (a local fleet, HTTP) does all I/O. `docs/secagg.md` has the protocol, the threat model and the costs.
"""

from fedavg.secagg.client import ClientSession, answer
from fedavg.secagg.errors import ClientAborted, MessageRefused, Reason, SecAggError, SessionAbandoned, TermsError
from fedavg.secagg.identity import Identity
from fedavg.secagg.messages import Message, parse
from fedavg.secagg.ring import Decoded, Encoded, Encoding
from fedavg.secagg.server import Aggregate, Phase, ServerSession
from fedavg.secagg.simulate import Costs, Outcome, simulate
from fedavg.secagg.terms import Terms

__all__ = [
    "Aggregate", "ClientAborted", "ClientSession", "Costs", "Decoded", "Encoded", "Encoding", "Identity", "Message",
    "MessageRefused", "Outcome", "Phase", "Reason", "SecAggError", "ServerSession", "SessionAbandoned", "Terms",
    "TermsError", "answer", "parse", "simulate",
]  # fmt: skip
