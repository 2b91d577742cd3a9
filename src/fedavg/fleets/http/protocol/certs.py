"""Certificates for trials and closed networks, and the TLS contexts of server and client.

A certificate is valid from a day before it was made, so that a device whose clock is an hour slow can use it at once.
"""

import datetime
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedavg.errors import FedAvgError
from fedavg.files import write_atomically

DAY: Final = datetime.timedelta(days=1)
#: How long an authority is valid, unless a certificate that it signs must be valid for longer.
CA_DAYS: Final = 3650
#: Every use of a key that a certificate can name.
_USES: Final = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


class CertificateError(FedAvgError):
    """Certificates could not be made or loaded."""


@dataclass(frozen=True)
class CertifiedKey:
    """The files of a certificate and its private key."""

    certificate: Path
    key: Path


@dataclass(frozen=True)
class Paths:
    ca: CertifiedKey
    server: CertifiedKey
    clients: tuple[CertifiedKey, ...]


@dataclass(frozen=True)
class Issuer:
    """A certificate authority: its name and the key that it signs with."""

    name: x509.Name
    key: ec.EllipticCurvePrivateKey
    not_before: datetime.datetime
    not_after: datetime.datetime

    def certify(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, extensions: Sequence[tuple[x509.ExtensionType, bool]]
    ) -> bytes:
        """A certificate of `key` for `subject`, as PEM. Each extension is paired with whether it is critical."""
        identity = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(self.not_before)
            .not_valid_after(self.not_after)
        )
        for extension, critical in (*extensions, (identity, False), (authority, False)):
            builder = builder.add_extension(extension, critical)
        return builder.sign(self.key, SHA256()).public_bytes(Encoding.PEM)


def make_certificates(directory: Path, hosts: Sequence[str], days: int = 365, clients: int = 0) -> Paths:
    """A new authority, a server's certificate for `hosts` (names and addresses) and as many clients' as asked for.

    The authority outlives them, so that they can be renewed under it.
    """
    if not hosts or days < 1 or clients < 0:
        raise CertificateError(f"got hosts {list(hosts)}, {days} days, {clients} clients; expected a host and a day")
    _alternative(hosts)  # refused before anything is written
    paths = _free_paths(directory, clients)
    now = datetime.datetime.now(datetime.UTC)
    name, key = _name("fedavg development CA"), ec.generate_private_key(ec.SECP256R1())
    authority = Issuer(name, key, now - DAY, now + max(CA_DAYS, days) * DAY)
    _write(paths.ca, authority.certify(name, key, _authority_extensions()), key)
    _issue_all(Issuer(name, key, now - DAY, now + days * DAY), paths, hosts)
    return paths


def renew_certificates(directory: Path, hosts: Sequence[str] = (), days: int = 365) -> Paths:
    """Replace the keys and certificates of the server and all clients in the directory, under the same authority, so
    that whoever trusts the authority need not change anything. Without `hosts`, the server keeps its names."""
    paths = _paths(directory, len(list(directory.glob("client-*.pem"))))
    now = datetime.datetime.now(datetime.UTC)
    ca = _certificate(paths.ca.certificate)
    left = (ca.not_valid_after_utc - now) // DAY
    if not 1 <= days <= left:
        raise CertificateError(
            f"--days: got {days}; the authority {paths.ca.certificate} is good for {max(left, 0)} more days: expected "
            "at most as many, or a new authority in another directory"
        )
    issuer = Issuer(ca.subject, _private_key(paths.ca), now - DAY, now + days * DAY)
    _issue_all(issuer, paths, hosts or _hosts(_certificate(paths.server.certificate)))
    return paths


class ServerCertificate:
    """The certificate of a server and the clients that it admits, from files that may change while it runs.

    `reload` affects new connections only.
    """

    def __init__(self, cert: Path, key: Path, client_ca: Path | None = None) -> None:
        self._files = (cert, key, client_ca)
        self._latest = self.context = server_context(*self._files)
        self.context.sni_callback = self._choose
        self.pem = cert.read_text()

    def reload(self, before: Callable[[str], None] = lambda _: None) -> None:
        """Read the files again. `before` receives the new certificate (PEM) before any client sees it.

        If the files are unusable, or `before` fails, nothing changes.
        """
        context, pem = server_context(*self._files), self._files[0].read_text()
        before(pem)
        self._latest, self.pem = context, pem

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        """Called in each handshake, also for clients that name no server."""
        connection.context = self._latest


def server_context(cert: Path, key: Path, client_ca: Path | None = None) -> ssl.SSLContext:
    """TLS 1.2 or newer; with `client_ca`, only for clients that show a certificate of that authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_pair(context, cert, key)
    if client_ca is not None:
        _trust(context, client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
        # A resumed session shows no certificate, so a client of an authority no longer trusted would stay admitted.
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET
    return context


def no_tls() -> ssl.SSLContext:
    """For plain HTTP. It trusts nobody, since loading the system's authorities takes longer than many requests."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def client_context(ca: Path | None = None, cert: Path | None = None, key: Path | None = None) -> ssl.SSLContext:
    """TLS 1.2 or newer; trusts only `ca`, or else the system's authorities, and checks the server's name."""
    if (cert is None) != (key is None):
        raise CertificateError("a client's certificate and its key go together; got one of them")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if ca is None:
        context.load_default_certs()
    else:
        _trust(context, ca)
    if cert is not None and key is not None:
        _load_pair(context, cert, key)
    return context


def check_admitted(server: ssl.SSLContext, shown: CertifiedKey) -> None:
    """Refuse a certificate that a server would not let in as a client's."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE  # the server's certificate is not checked here
    _load_pair(client, shown.certificate, shown.key)
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = client.wrap_bio(down, up), server.wrap_bio(up, down, server_side=True)
    left = list(ends)
    while left:
        for end in tuple(left):
            try:
                end.do_handshake()
                left.remove(end)
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError as error:
                raise CertificateError(
                    f"{shown.certificate} is not let in by --client-ca: {error.reason or error}; expected a "
                    "certificate for a client (TLS client authentication) that this authority has signed"
                ) from error


def _paths(directory: Path, clients: int) -> Paths:
    def pair(name: str) -> CertifiedKey:
        return CertifiedKey(directory / f"{name}.pem", directory / f"{name}.key")

    return Paths(pair("ca"), pair("server"), tuple(pair(f"client-{number}") for number in range(clients)))


def _free_paths(directory: Path, clients: int) -> Paths:
    """The paths of the new files. An existing file is an error, because others may rely on it."""
    paths = _paths(directory, clients)
    for taken in (paths.ca, paths.server, *paths.clients):
        for path in (taken.certificate, taken.key):
            if path.exists():
                raise CertificateError(f"{path} is there already; choose another directory, or --renew")
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CertificateError(f"cannot make {directory}: {error.strerror}") from error
    return paths


def _issue_all(issuer: Issuer, paths: Paths, hosts: Sequence[str]) -> None:
    _issue(issuer, paths.server, hosts[0], ExtendedKeyUsageOID.SERVER_AUTH, [_alternative(hosts)])
    for number, pair in enumerate(paths.clients):
        _issue(issuer, pair, f"client-{number}", ExtendedKeyUsageOID.CLIENT_AUTH, [])


def _certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CertificateError(
            f"cannot renew: {path}: {error}; expected a directory that 'fedavg certs' made"
        ) from None


def _private_key(pair: CertifiedKey) -> ec.EllipticCurvePrivateKey:
    try:
        key = load_pem_private_key(pair.key.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise CertificateError(f"cannot renew: {pair.key}: {error}; expected the authority's own key") from None
    if (
        not isinstance(key, ec.EllipticCurvePrivateKey)
        or key.public_key() != _certificate(pair.certificate).public_key()
    ):
        raise CertificateError(f"cannot renew: {pair.key} is not the key of {pair.certificate}; expected that one")
    return key


def _hosts(certificate: x509.Certificate) -> list[str]:
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]


def _issue(
    issuer: Issuer,
    pair: CertifiedKey,
    name: str,
    purpose: x509.ObjectIdentifier,
    more: list[tuple[x509.ExtensionType, bool]],
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    extensions = [
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage(digital_signature=True), True),
        (x509.ExtendedKeyUsage([purpose]), False),
    ]
    _write(pair, issuer.certify(_name(name), key, [*extensions, *more]), key)


def _authority_extensions() -> list[tuple[x509.ExtensionType, bool]]:
    return [
        (x509.BasicConstraints(ca=True, path_length=0), True),
        (_usage(key_cert_sign=True, crl_sign=True), True),
    ]


def _usage(**granted: bool) -> x509.KeyUsage:
    return x509.KeyUsage(**dict.fromkeys(_USES, False) | granted)


def _alternative(hosts: Sequence[str]) -> tuple[x509.ExtensionType, bool]:
    return x509.SubjectAlternativeName([_host(host) for host in hosts]), False


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise CertificateError(f"{host!r} is not a host; expected an address or a name in ASCII (punycode)") from error


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:64])])


def _write(pair: CertifiedKey, certificate: bytes, key: ec.EllipticCurvePrivateKey) -> None:
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    write_atomically(pair.key, pem, private=True)
    write_atomically(pair.certificate, certificate)


def _load_pair(context: ssl.SSLContext, cert: Path, key: Path) -> None:
    try:
        # Otherwise an encrypted key would ask for its password on the terminal.
        context.load_cert_chain(cert, key, password=lambda: "")
    except (OSError, ValueError) as error:  # SSLError is an OSError
        raise CertificateError(f"cannot use certificate {cert} with key {key}: {error}") from error


def _trust(context: ssl.SSLContext, ca: Path) -> None:
    try:
        context.load_verify_locations(ca)
    except OSError as error:
        raise CertificateError(f"cannot use {ca} as a certificate authority: {error}") from error
