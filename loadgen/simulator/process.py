"""A simulator in a process of its own, and the loop that both this and `loadgen simulate` run.

Knows: signals, child processes, and how a configuration gets into one. Must not know: what is served.
Why: a client that shares its event loop with the server measures itself. The child reads its configuration from its
standard input and lives as long as that stays open, so a parent that dies takes it along.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from types import TracebackType

from loadgen.errors import EndpointError
from loadgen.simulator.config import SimulatorConfig, simulated
from loadgen.simulator.server import Simulator

_STOP_S = 10.0


async def serve(config: SimulatorConfig, port: int, announce: Callable[[str], None], *, orphan: bool = True) -> str:
    """Serve until SIGTERM or SIGINT (with `orphan` False also until standard input ends); returns the lateness line.

    `announce` gets the URL once it answers.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if not orphan:
        loop.add_reader(sys.stdin.fileno(), stop.set)
    async with Simulator(config, port) as simulator:
        # What is there now stays for good; collecting it again and again would only make steps late.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 100)
        announce(simulator.url)
        await stop.wait()
        if not orphan:
            loop.remove_reader(sys.stdin.fileno())
    return simulator.counters.lateness.summary()


class SimulatorProcess:
    """A simulator in a child process: `with SimulatorProcess(config) as sim: ... sim.url`. None: `simulated()`.

    After the block `lateness` is the child's own account of how late it was.
    """

    def __init__(self, config: SimulatorConfig | None = None, port: int = 0) -> None:
        self._config, self._port = config or simulated(), port
        self.url = ""
        self.lateness = ""

    def __enter__(self) -> SimulatorProcess:
        command = [sys.executable, "-m", "loadgen.simulator.process"]
        # A session of its own: Ctrl-C at the terminal is the parent's to handle, the endpoint stays until it is done.
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(pickle.dumps((self._config, self._port)))
        self._child.stdin.flush()
        self.url = self._child.stdout.readline().decode().strip()
        if not self.url.startswith("http://"):
            self.__exit__(None, None, None)
            raise EndpointError(self.url or "the simulator did not start", where=f"127.0.0.1:{self._port}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            out, _ = self._child.communicate(timeout=_STOP_S)  # closes its standard input, which ends it
        except subprocess.TimeoutExpired:
            self._child.kill()
            out, _ = self._child.communicate()
        self.lateness = out.decode().strip()


def _main() -> None:
    config, port = pickle.load(sys.stdin.buffer)
    try:
        last_words = asyncio.run(serve(config, port, lambda url: print(url, flush=True), orphan=False))
    except EndpointError as taken:
        last_words = taken.what
    with contextlib.suppress(BrokenPipeError):  # the parent has died: nobody listens
        print(last_words, flush=True)


if __name__ == "__main__":
    _main()
