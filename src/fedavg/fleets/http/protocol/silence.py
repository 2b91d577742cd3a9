"""Explains in words why a server cannot be reached, and what to do, from the error of the network or TLS."""

from typing import Final

#: Part of an error's text, and its meaning with a remedy. The first match is used.
_MEANINGS: Final = (
    (
        ("unable to get local issuer", "self-signed", "self signed", "unable to get issuer"),
        "its certificate was signed by an authority that is not trusted here; give that authority's file with --ca",
    ),
    (
        ("hostname mismatch", "ip address mismatch", "doesn't match", "not valid for"),
        "its certificate is for other names; expected one of those in the URL, or a certificate for this one "
        "('fedavg certs DIRECTORY --renew --host NAME')",
    ),
    (
        ("certificate has expired",),
        "its certificate has expired; expected one that the operator has renewed ('fedavg certs DIRECTORY --renew', "
        "then SIGHUP), and a clock that is right here",
    ),
    (
        ("certificate required", "certificate_required", "handshake failure", "bad certificate", "unknown ca"),
        "it asks for a certificate of an authority that it trusts; expected --cert and --key with one",
    ),
    (
        ("wrong_version_number", "wrong version number", "record layer failure", "http request"),
        "it does not speak TLS; expected http: (on loopback, of a server started with --insecure), or another port",
    ),
    (
        ("connection refused", "errno 111", "errno 61"),
        "nothing listens there; is the server running, and is the port right?",
    ),
    (
        ("name or service not known", "nodename nor servname", "name resolution", "getaddrinfo"),
        "there is no such host; is the name right?",
    ),
    (("unreachable", "no route"), "there is no route to it; is the network up, and is the address right?"),
)
#: How many of the entries above are faults of a certificate.
_LASTING: Final = 3
#: A connection that was closed without an answer, by how it was opened.
_ENDED: Final = {
    "http": "it closes the connection; expected https: if it has a certificate",
    "https": "it closes the connection; if it asks for certificates (mTLS), expected --cert and --key with one of an "
    "authority that it trusts",
}


def why_silent(url: str, error: Exception) -> str:
    """The cause and the remedy."""
    said = str(error) or type(error).__name__
    meaning = next((means for signs, means in _MEANINGS if any(sign in said.lower() for sign in signs)), None)
    if meaning is None and "disconnected" in said.lower():
        meaning = _ENDED["https" if url.startswith("https:") else "http"]
    if meaning is None:
        meaning = "is the server running, is there a firewall or a proxy in between?"
    return f"{url} cannot be reached: {meaning} ({said})"


def is_mistake(error: Exception) -> bool:
    """Whether the cause is a wrong certificate, so that trying again would not help."""
    said = str(error).lower()
    return any(sign in said for signs, _ in _MEANINGS[:_LASTING] for sign in signs)
