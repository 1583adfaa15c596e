"""What HTTP allows and real servers do: heads, statuses, encodings, sizes, TLS."""

from __future__ import annotations

import gzip
import shutil
import socket
import ssl
import subprocess
from pathlib import Path

import pytest

from loadgen.engine.exchange import split_head
from loadgen.engine.transport import Security
from loadgen.errors import UsageError
from loadgen.model import Capture, Receives
from tests.engine.scripted import (
    BODY,
    CHUNKED,
    DONE,
    EVENTS,
    LAST,
    OK,
    TOKEN,
    WHOLE,
    Client,
    Peer,
    Scripted,
    ask_once,
    chunk,
    failed_with,
    received,
    sends,
    with_client,
)

MS = 1_000_000


@pytest.mark.parametrize("stamping", [True, False], ids=["fast lane", "tap"])
def test_interim_responses_are_not_the_head(stamping: bool) -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"
    capture, server = ask_once(sends(early, early + CHUNKED, *EVENTS, LAST, gap_s=0.03), stamping=stamping)
    assert (capture.status, capture.complete) == (200, True)
    assert received(capture) == BODY + LAST
    assert capture.headers_ns is not None
    assert capture.headers_ns >= server.peers[0].sends[1][0]


def test_a_redirect_is_an_answer() -> None:
    head = b"HTTP/1.1 307 Temporary Redirect\r\nlocation: http://127.0.0.1:1/elsewhere\r\ncontent-length: 0\r\n\r\n"
    capture, server = ask_once(sends(head))
    assert (capture.failure, capture.status, capture.complete) == (None, 307, True)
    assert dict(capture.headers)["location"] == "http://127.0.0.1:1/elsewhere"
    assert len(server.peers) == 1


@pytest.mark.parametrize("status", [b"401 Unauthorized", b"429 Too Many Requests", b"502 Bad Gateway"])
def test_an_error_status_keeps_its_body_and_headers(status: bytes) -> None:
    head = b"HTTP/1.1 " + status + b"\r\nRetry-After: 7\r\ncontent-length: 15\r\n\r\n"
    capture, _ = ask_once(sends(head, b'{"error":"why"}'))
    assert (capture.failure, capture.status) == (None, int(status[:3]))
    assert received(capture) == b'{"error":"why"}'
    assert ("retry-after", "7") in capture.headers


def test_a_compressed_body_is_kept_as_it_came() -> None:
    packed = gzip.compress(TOKEN * 20 + DONE)
    head = OK + b"content-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n"
    capture, _ = ask_once(sends(head, chunk(packed[:30]), chunk(packed[30:]), LAST))
    assert capture.complete
    assert received(capture) == chunk(packed[:30]) + chunk(packed[30:]) + LAST
    assert ("content-encoding", "gzip") in capture.headers


def test_an_empty_answer_is_complete() -> None:
    capture, _ = ask_once(sends(CHUNKED, LAST))
    assert (capture.failure, capture.complete, received(capture)) == (None, True, LAST)


def test_no_http_at_all() -> None:
    capture, _ = ask_once(sends(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"))
    assert capture.failure is not None
    assert capture.failure.kind == "protocol"


def test_broken_chunks_are_a_protocol_failure_with_what_came() -> None:
    capture, _ = ask_once(sends(CHUNKED, chunk(TOKEN), b"zz\r\nnot a size\r\n\r\n"))
    assert capture.failure is not None
    assert capture.failure.kind == "protocol"
    assert received(capture).startswith(chunk(TOKEN))


@pytest.mark.parametrize("stamping", [True, False], ids=["fast lane", "tap"])
def test_a_line_of_600_kb(stamping: bool) -> None:
    event = b'data: {"choices":[{"delta":{"content":"' + b"y" * 600_000 + b'"}}]}\n\n'
    capture, _ = ask_once(sends(CHUNKED, chunk(event), chunk(DONE), LAST), stamping=stamping)
    assert (capture.failure, capture.complete) == (None, True)
    assert received(capture) == chunk(event) + chunk(DONE) + LAST


@pytest.mark.parametrize("stamping", [True, False], ids=["fast lane", "tap"])
def test_a_body_of_16_mb(stamping: bool) -> None:
    whole = chunk(b"data: " + b"z" * 65_000 + b"\n\n") * 256 + LAST
    capture, _ = ask_once(sends(CHUNKED, whole), stamping=stamping)
    assert (capture.failure, capture.complete) == (None, True)
    assert received(capture) == whole


def test_a_request_of_8_mb_is_stamped_at_both_ends() -> None:
    def script(peer: Peer) -> None:
        peer.wait(0.1)  # nothing is read at first, so the kernel's buffers fill
        peer.request()
        peer.send(WHOLE)

    capture, _ = ask_once(script, body=b"x" * (8 << 20))
    assert capture.failure is None
    assert capture.sent_ns is not None
    assert capture.sent_end_ns is not None
    assert capture.sent_end_ns - capture.sent_ns > 50 * MS


def test_an_answer_that_comes_before_the_request_was_read() -> None:
    """413 while the body is still on its way, and the connection closes: the answer counts, not the broken pipe."""
    answer = b"HTTP/1.1 413 Content Too Large\r\nconnection: close\r\ncontent-length: 2\r\n\r\nno"

    def script(peer: Peer) -> None:
        peer.sock.recv(1000)
        peer.send(answer)
        peer.wait(0.1)
        peer.sock.shutdown(socket.SHUT_WR)
        while peer.sock.recv(1 << 20):
            pass

    capture, _ = ask_once(script, body=b"x" * (32 << 20))
    assert capture.status == 413
    assert received(capture) == b"no"


def test_the_head_is_divided_from_the_body_wherever_it_is_cut() -> None:
    stream = b"HTTP/1.1 100 Continue\r\n\r\n" + CHUNKED + BODY
    for cut in range(1, len(stream) - 1):
        stamp, body = split_head(Receives([(1, stream[:cut], 0), (2, stream[cut:], 0)]))
        assert stamp == (1 if cut >= len(stream) - len(BODY) else 2)
        assert b"".join(data for _, data, _ in body) == BODY
    stamp, body = split_head(Receives([(1, CHUNKED[:-1], 0)]))
    assert (stamp, list(body)) == (None, [])


# -- TLS ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for 127.0.0.1, with its key, in one file."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate and is not installed")
    folder = tmp_path_factory.mktemp("tls")
    made = folder / "both.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=loadgen-test"
    extensions = ["-addext", "subjectAltName=IP:127.0.0.1", "-addext", "keyUsage=critical,digitalSignature,keyCertSign"]
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run([*command.split(), *extensions, *files], check=True, capture_output=True)
    made.write_bytes((folder / "key.pem").read_bytes() + (folder / "cert.pem").read_bytes())
    return made


def secure(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


@pytest.mark.parametrize("how", ["ca", "insecure"])
def test_tls_has_process_stamps_and_says_so(certificate: Path, how: str) -> None:
    security = Security(ca_file=str(certificate)) if how == "ca" else Security(insecure=True)
    capture, server = ask_once(sends(CHUNKED, *EVENTS, LAST, gap_s=0.02), security=security, tls=secure(certificate))
    assert (capture.failure, capture.complete) == (None, True)
    assert received(capture) == BODY + LAST
    assert capture.stamp_source == "process"
    assert capture.connected_ns is not None
    assert capture.sent_ns is not None
    assert capture.sent_ns >= capture.connected_ns  # the handshake is part of connecting, not of the request
    arrivals = [stamp for stamp, _, _ in capture.body]
    assert arrivals == sorted(arrivals)
    assert len(arrivals) == len(server.peers[0].sends) - 1
    followed = [*(before for before, _ in server.peers[0].sends[2:]), capture.end_ns or 0]
    for (before, _), arrival, after in zip(server.peers[0].sends[1:], arrivals, followed, strict=True):
        assert before <= arrival <= after  # the next is sent when this one has been received


def test_tls_with_an_unknown_certificate_is_a_connect_failure(certificate: Path) -> None:
    capture, _ = ask_once(sends(WHOLE), tls=secure(certificate))
    failed_with(capture, "connect", "certificate")
    assert capture.sent_ns is None


def test_tls_keeps_connections(certificate: Path) -> None:
    def script(peer: Peer) -> None:
        while True:
            peer.request()
            peer.send(CHUNKED, *EVENTS, LAST, gap_s=0.002)

    captures: list[Capture] = []
    with Scripted(script, secure(certificate)) as server:

        async def use(client: Client) -> None:
            captures.extend([await client.ask(server.url) for _ in range(3)])

        with_client(use, security=Security(insecure=True))
    assert [c.connected_ns is not None for c in captures] == [True, False, False]
    assert all(c.complete and received(c) == BODY + LAST and c.sent_ns is not None for c in captures)


def test_a_ca_file_that_is_none_is_the_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    with pytest.raises(UsageError, match="CA file"):
        ask_once(sends(WHOLE), security=Security(ca_file=str(tmp_path / "ca.pem")))
