"""How a command asks a running server: where it is, how it is known, and who asks."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from fedavg.errors import FedAvgError, FleetError

FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


@dataclass(frozen=True)
class AskedServer:
    """A server, the authority of its certificate, and the asking person's own certificate (mTLS) and token."""

    url: str
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    token_file: Path | None = None


def reaching(token_needed: bool = True) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The options by which a server is reached; a command is given them as one `server`, made of its URL."""

    def wrap(command: Callable[..., None]) -> Callable[..., None]:
        def with_server(
            url: str, ca: Path | None, cert: Path | None, key: Path | None, admin_token_file: Path | None, **others: Any
        ) -> None:
            needs_server_extra()
            command(server=AskedServer(url, ca, cert, key, admin_token_file), **others)

        with_server.__doc__ = command.__doc__
        with_server.__name__ = command.__name__
        if hasattr(command, "__click_params__"):
            with_server.__click_params__ = command.__click_params__  # type: ignore[attr-defined]
        wrapped: Callable[..., None] = with_server
        for option in (
            click.option("--key", type=FILE, help="Its private key."),
            click.option("--cert", type=FILE, help="Your own certificate, if the server asks for one (mTLS)."),
            click.option("--ca", type=FILE, help="The authority of the server's certificate, if it is not a public "
                         "one."),
            click.option("--admin-token-file", type=FILE, required=token_needed,
                         help="A file with the operator's token (RUN-DIR/admin-token), or with one that has a role."),
        ):  # fmt: skip
            wrapped = option(wrapped)
        return wrapped

    return wrap


def needs_server_extra() -> None:
    """The fleet needs packages that a simulation does not."""
    try:
        import cryptography  # noqa: F401
        import httpx2  # noqa: F401
        import sqlalchemy  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise FedAvgError(f"the fleet needs {error.name}; install it with: pip install 'fedavg[server]'") from None


def check_url(url: str, insecure: bool) -> None:
    from fedavg.fleets.http.device.connection import check_url

    check_url(url, insecure)


def ask(server: AskedServer, method: str, path: str, content: object = None, data: bytes | None = None) -> Any:
    """What the server answers, JSON; `content` is sent as JSON, `data` as it is."""
    import httpx2 as httpx

    from fedavg.fleets.http.protocol.certs import client_context, no_tls
    from fedavg.fleets.http.protocol.silence import why_silent

    url = server.url
    check_url(url, insecure=True)  # which still keeps the operator's token off the network in the clear
    if bool(server.cert) != bool(server.key):
        raise FleetError("--cert and --key belong together; got one of them")
    if server.cert and not url.startswith("https:"):
        raise FleetError(f"--cert is for TLS; got {url}, expected https:")
    headers = {"Authorization": f"Bearer {read_token(server.token_file)}"} if server.token_file else {}
    verify = client_context(server.ca, server.cert, server.key) if url.startswith("https:") else no_tls()
    try:
        with httpx.Client(verify=verify, headers=headers, timeout=60.0) as http:
            response = http.request(method, url.rstrip("/") + path, json=content, content=data)
    except httpx.TransportError as error:
        raise FleetError(why_silent(url, error)) from None
    try:
        answer = response.json()
    except ValueError:
        raise FleetError(f"{url}{path} answered {response.status_code} without JSON; is it a fedavg server?") from None
    if not response.is_success:
        raise FleetError(_refused(server, path, answer))
    return answer


def _refused(server: AskedServer, path: str, answer: Any) -> str:
    """What the server said, and what the user can do about it."""
    error, detail = (answer.get(name) for name in ("error", "detail")) if isinstance(answer, dict) else ("?", answer)
    remedies = {
        "admin-token": f"expected the operator's token (RUN-DIR/admin-token) or one with a role in {server.token_file}",
        "no-such-path": "expected the address of the operator (--admin-listen, or a replica's own)"
        + ("; runs are there in a service: 'fedavg serve' without a plan" if path.startswith("/admin/runs") else ""),
    }
    remedy = f"; {remedies[error]}" if error in remedies and path.startswith("/admin/") else ""
    return f"the server refused ({error}): {detail}{remedy}"


def read_token(path: Path) -> str:
    """The token in a file, which is one line of visible ASCII."""
    try:
        token = path.read_bytes().decode("ascii").strip()
    except UnicodeDecodeError:
        token = ""
    if not token or len(token) > 1024 or any(not "!" <= letter <= "~" for letter in token):
        raise FleetError(f"{path} holds no token; expected one line, as the server or 'fedavg token' wrote it")
    return token
