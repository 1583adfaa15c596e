"""The least that Python can do: an epoll reader of the same bytes, to compare the client's CPU with.

    python -m tests.benchmarks.bare_reader --oracle PATH [--streams 256] [--rounds 3] [--tokens 200]

The reader holds as many connections, sends as many requests of the same size, receives every byte and throws it away:
no stamps, no parsing, no schedule. `loadgen run` then does the same load, in the same minute, on the same core.
"""

from __future__ import annotations

import select
import socket
import statistics
import sys
import tempfile
from pathlib import Path


def read_all(host: str, port: int, streams: int, requests: int, body: bytes) -> None:
    """Keep `streams` requests in flight until `requests` have been answered."""
    request = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
    epoll = select.epoll()
    sockets = {}
    for _ in range(min(streams, requests)):
        sock = socket.create_connection((host, port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(False)
        sockets[sock.fileno()] = sock
        epoll.register(sock.fileno(), select.EPOLLIN)
        sock.send(request)
    sent, done = len(sockets), 0
    while done < requests:
        for fd, _ in epoll.poll():
            data = sockets[fd].recv(65_536)
            if data == b"0\r\n\r\n" or data.endswith(b"\n\r\n0\r\n\r\n"):
                done += 1
                if sent < requests:
                    sockets[fd].send(request)
                    sent += 1
            elif not data:
                raise ConnectionError("the oracle closed a connection")


def main() -> None:
    if sys.argv[1:2] == ["--read"]:
        host, port, streams, requests, model, tokens = sys.argv[2:]
        prompt = "word " * 32
        body = (
            f'{{"model":"{model}","messages":[{{"role":"user","content":"{prompt}"}}],"max_tokens":{tokens},'
            '"stream":true,"stream_options":{"include_usage":true}}'
        )
        read_all(host, int(port), int(streams), int(requests), body.encode())
        return
    # Not at the top: the reader is to start as barely as it reads.
    from tests.benchmarks.harness import Oracle, arguments, loadgen_run, machine, real_time, run_child, table

    parser = arguments(__doc__ or "")
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=200)
    given = parser.parse_args()
    requests, model = given.streams * given.rounds, "t50000-i10000"
    real_time()
    print(machine())
    rows = []
    for _ in range(given.repeats):
        with Oracle(given.oracle, given.server_core, log=False) as oracle:
            host, _, port = oracle.url.removeprefix("http://").removesuffix("/v1").partition(":")
            load = [host, port, str(given.streams), str(requests), model, str(given.tokens)]
            bare = run_child([sys.executable, "-m", "tests.benchmarks.bare_reader", "--read", *load], given.client_core)
            if bare.code:
                raise RuntimeError(bare.output)
        flags = ["--model", model, "--concurrency", str(given.streams), "--requests", str(requests), "--burst-start"]
        flags += ["--output-tokens", str(given.tokens), "--prompt-tokens", "32", "--no-report"]
        with tempfile.TemporaryDirectory() as folder, Oracle(given.oracle, given.server_core, log=False) as oracle:
            ours = loadgen_run(oracle.url, Path(folder) / "run", flags, given.client_core)
        rows.append((f"{bare.cpu_s:.2f}", f"{ours.cpu_s:.2f}", f"{ours.cpu_s / bare.cpu_s:.2f}"))
    ratio = statistics.median(float(row[2]) for row in rows)
    print(table(("bare reader, CPU s", "loadgen run --no-report, CPU s", "ratio"), rows))
    print(f"\nmedian ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
