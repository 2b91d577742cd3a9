import datetime
import socket
import ssl
import threading

import pytest
from cryptography import x509

from fedavg.fleets.http.protocol.certs import (
    CertificateError,
    ServerCertificate,
    check_admitted,
    client_context,
    make_certificates,
    no_tls,
    renew_certificates,
    server_context,
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_certificates(tmp_path_factory.mktemp("certs"), ["localhost", "127.0.0.1", "::1"], clients=2)


def talk(server: ssl.SSLContext, client: ssl.SSLContext, host: str = "localhost") -> str:
    """Says hello over a real socket; gives the version of TLS that was agreed on."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        connection, _ = listener.accept()
        try:
            with server.wrap_socket(connection, server_side=True) as secured:
                secured.sendall(secured.recv(5).upper())
        except OSError:
            connection.close()  # the client's side says what went wrong

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        with (
            socket.create_connection(listener.getsockname(), timeout=10) as plain,
            client.wrap_socket(plain, server_hostname=host) as secured,
        ):
            secured.sendall(b"hello")
            assert secured.recv(5) == b"HELLO"
            return str(secured.version())
    finally:
        thread.join()
        listener.close()


def of(pair):
    return pair.certificate, pair.key


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1"])
def test_a_handshake(made, host):
    assert talk(server_context(*of(made.server)), client_context(made.ca.certificate), host) == "TLSv1.3"


def test_tls_1_2_is_the_oldest(made):
    client = client_context(made.ca.certificate)
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    assert talk(server_context(*of(made.server)), client) == "TLSv1.2"
    assert server_context(*of(made.server)).minimum_version == ssl.TLSVersion.TLSv1_2


def test_strict_checks_of_newer_pythons_pass(made):
    client, server = client_context(made.ca.certificate, *of(made.clients[0])), server_context(*of(made.server))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    talk(server, client)


def test_another_host_is_refused(made):
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        talk(server_context(*of(made.server)), client_context(made.ca.certificate), "example.org")


def test_a_foreign_authority_is_refused(made, tmp_path):
    foreign = make_certificates(tmp_path, ["localhost"], clients=1)
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate verify failed"):
        talk(server_context(*of(made.server)), client_context(foreign.ca.certificate))
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate verify failed"):
        talk(server_context(*of(made.server)), client_context())
    mutual = server_context(*of(made.server), client_ca=made.ca.certificate)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        talk(mutual, client_context(made.ca.certificate, *of(foreign.clients[0])))


def test_both_sides_show_a_certificate(made):
    mutual = server_context(*of(made.server), client_ca=made.ca.certificate)
    for pair in made.clients:
        talk(mutual, client_context(made.ca.certificate, *of(pair)))
    with pytest.raises((ssl.SSLError, ConnectionError)):
        talk(mutual, client_context(made.ca.certificate))
    with pytest.raises((ssl.SSLError, ConnectionError)):  # a server's certificate is none for a client
        talk(mutual, client_context(made.ca.certificate, *of(made.server)))


def test_what_a_server_would_not_let_in_is_told_beforehand(made, tmp_path):
    mutual = server_context(*of(made.server), client_ca=made.ca.certificate)
    check_admitted(mutual, made.clients[0])
    foreign = make_certificates(tmp_path, ["localhost"], clients=1)
    for pair in (made.server, foreign.clients[0]):
        with pytest.raises(
            CertificateError, match="is not let in by --client-ca: .*expected a certificate for a client"
        ):
            check_admitted(mutual, pair)


def test_a_clients_certificate_is_none_for_a_server(made):
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate verify failed"):
        talk(server_context(*of(made.clients[0])), client_context(made.ca.certificate))


def test_clocks_may_be_off(made):
    certificate = x509.load_pem_x509_certificate(made.server.certificate.read_bytes())
    now = datetime.datetime.now(datetime.UTC)
    assert certificate.not_valid_before_utc < now - datetime.timedelta(hours=23)
    assert datetime.timedelta(days=364) < certificate.not_valid_after_utc - now < datetime.timedelta(days=365)


def test_files(made):
    directory = made.ca.key.parent
    names = ["ca.key", "ca.pem", "client-0.key", "client-0.pem", "client-1.key", "client-1.pem"]
    assert sorted(path.name for path in directory.iterdir()) == [*names, "server.key", "server.pem"]
    assert {path.stat().st_mode & 0o777 for path in directory.glob("*.key")} == {0o600}


def test_nothing_is_written_over(tmp_path):
    (tmp_path / "server.key").write_text("mine")
    with pytest.raises(CertificateError, match="server.key is there already"):
        make_certificates(tmp_path, ["localhost"])
    assert [path.name for path in tmp_path.iterdir()] == ["server.key"]
    assert (tmp_path / "server.key").read_text() == "mine"


@pytest.mark.parametrize("wrong", [{"hosts": []}, {"hosts": ["müller.example"]}, {"days": 0}, {"clients": -1}])
def test_wrong_requests_write_nothing(tmp_path, wrong):
    with pytest.raises(CertificateError, match="expected"):
        make_certificates(tmp_path / "certs", **{"hosts": ["localhost"]} | wrong)
    assert not (tmp_path / "certs").exists()


def test_files_that_do_not_fit(made, tmp_path):
    with pytest.raises(CertificateError, match="cannot use certificate"):
        server_context(made.server.certificate, made.ca.key)
    with pytest.raises(CertificateError, match="cannot use certificate"):
        server_context(tmp_path / "none.pem", made.server.key)
    with pytest.raises(CertificateError, match="as a certificate authority"):
        client_context(made.server.key)
    with pytest.raises(CertificateError, match="go together"):
        client_context(made.ca.certificate, made.clients[0].certificate)


def shown(server: ssl.SSLContext, client: ssl.SSLContext) -> bytes:
    """The certificate that a server shows."""
    found = []
    wrap = client.wrap_socket

    class Looking:
        def wrap_socket(self, *arguments, **options):
            secured = wrap(*arguments, **options)
            found.append(secured.getpeercert(binary_form=True))
            return secured

    talk(server, Looking())
    return found[0]


def test_certificates_are_renewed_under_the_same_authority(tmp_path):
    made = make_certificates(tmp_path, ["localhost", "server.example"], days=30, clients=2)
    ca, before = made.ca.certificate.read_bytes(), made.server.certificate.read_bytes()
    again = renew_certificates(tmp_path, days=90)
    assert again == made
    assert made.ca.certificate.read_bytes() == ca
    assert made.server.certificate.read_bytes() != before
    new = x509.load_pem_x509_certificate(made.server.certificate.read_bytes())
    names = new.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "server.example"]
    assert (new.not_valid_after_utc - datetime.datetime.now(datetime.UTC)).days in (89, 90)
    assert oct(made.server.key.stat().st_mode & 0o777) == "0o600"
    server = server_context(*of(made.server), made.ca.certificate)
    assert talk(server, client_context(made.ca.certificate, *of(made.clients[1])))
    renew_certificates(tmp_path, ["127.0.0.1"])
    with pytest.raises(ssl.SSLCertVerificationError):
        talk(server_context(*of(made.server)), client_context(made.ca.certificate), "localhost")


def test_what_cannot_be_renewed_is_told(tmp_path):
    with pytest.raises(CertificateError, match="expected a directory that 'fedavg certs' made"):
        renew_certificates(tmp_path)
    made = make_certificates(tmp_path, ["localhost"])
    before = made.server.certificate.read_bytes()
    with pytest.raises(CertificateError, match="is good for 3649 more days"):
        renew_certificates(tmp_path, days=5000)
    other = make_certificates(tmp_path / "other", ["localhost"])
    made.ca.key.write_bytes(other.ca.key.read_bytes())
    with pytest.raises(CertificateError, match="is not the key of"):
        renew_certificates(tmp_path)
    assert made.server.certificate.read_bytes() == before


def test_a_server_shows_renewed_certificates_and_stays_with_the_old_ones_if_it_cannot_use_them(tmp_path):
    made = make_certificates(tmp_path, ["localhost"])
    certificate, client = ServerCertificate(*of(made.server)), client_context(made.ca.certificate)
    first = shown(certificate.context, client)
    renew_certificates(tmp_path)
    assert shown(certificate.context, client) == first  # it was not told
    told = []
    certificate.reload(told.append)
    second = shown(certificate.context, client)
    assert second != first
    assert told == [made.server.certificate.read_text()] == [certificate.pem]
    made.server.key.write_text("no key")
    with pytest.raises(CertificateError, match="cannot use certificate"):
        certificate.reload()
    assert shown(certificate.context, client) == second


def test_a_server_that_is_told_trusts_clients_of_the_new_authority_and_no_longer_of_the_old(tmp_path):
    old = make_certificates(tmp_path / "old", ["localhost"], clients=1)
    new = make_certificates(tmp_path / "new", ["localhost"], clients=1)
    trusted = tmp_path / "clients.pem"
    trusted.write_bytes(old.ca.certificate.read_bytes())
    certificate = ServerCertificate(*of(old.server), trusted)
    by_old, by_new = (client_context(old.ca.certificate, *of(each.clients[0])) for each in (old, new))
    assert talk(certificate.context, by_old)
    with pytest.raises((OSError, AssertionError)):
        talk(certificate.context, by_new)
    trusted.write_bytes(new.ca.certificate.read_bytes())
    certificate.reload()
    assert talk(certificate.context, by_new)
    with pytest.raises((OSError, AssertionError)):
        talk(certificate.context, by_old)


def test_for_plain_http_nobody_is_trusted_and_no_authorities_are_read():
    """So that a link that was to be in the clear never speaks TLS to just anybody."""
    context = no_tls()
    assert context.cert_store_stats() == {"x509": 0, "crl": 0, "x509_ca": 0}
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
