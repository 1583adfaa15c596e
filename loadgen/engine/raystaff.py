"""Workers on the nodes of a Ray cluster: hands as actors.

Knows: Ray, and nothing else does. Must not know: what workers do, requests, flags.
Why Ray: it is what many fleets run already; it places processes, carries messages and notices that a node is gone. It
is never on the path of a request: a hand is an actor, the worker is a process of its own beside it (`remote`).

No key is in an actor's arguments or name: those are kept by the cluster. A seat, which holds the headers, goes from
this process to the actor's directly, and neither prints it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from typing import Any

from loadgen.engine.host import cores
from loadgen.engine.links import Link
from loadgen.engine.remote import Hand, RemoteLink
from loadgen.engine.worker import Seat
from loadgen.errors import UsageError

_CONNECT_S = 5.0
_PLACE_S = 300.0  # for a cluster that must start nodes first
_TELL_S = 5.0
_QUIET = {"RAY_IGNORE_UNHANDLED_ERRORS": "1", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


class _Actor(Hand):
    """A hand that knows its node."""

    async def about(self) -> dict[str, Any]:
        import ray

        return {**await super().about(), "node": ray.get_runtime_context().get_node_id()}


class RayStaff:
    """Hands that are placed and answer; see `ray_staff`."""

    lead_ns = 500_000_000
    here = False

    def __init__(self, ray: Any, hands: list[Any], abouts: list[dict[str, Any]], facts: dict[str, Any]) -> None:
        self._ray, self._hands, self._abouts, self._facts = ray, hands, abouts, facts
        self._quiet: asyncio.Lock | None = None

    async def hire(self, seat: Seat) -> Link:
        self._quiet = self._quiet or asyncio.Lock()
        hand = self._hands[seat.number]

        def call(name: str, *arguments: Any) -> Any:
            return getattr(hand, name).remote(*arguments)

        link = RemoteLink(call, (self._ray.exceptions.RayError,), self._abouts[seat.number])
        await link.open(seat, self._quiet)
        return link

    def facts(self) -> dict[str, Any]:
        return self._facts


@contextmanager
def ray_staff(address: str, workers: int, say: Callable[[str], None]) -> Iterator[RayStaff]:
    """Connect to the cluster at `address` ("auto": the one that runs here or that RAY_ADDRESS names, "local": one that
    is started here for this run, else HOST:PORT) and place `workers` hands on its nodes.

    Raises:
        UsageError: Ray is not installed, no cluster answers, it has no room, its nodes have no loadgen or another one.
    """
    ray = _import_ray()
    began = time.monotonic()
    _connect(ray, address, workers)
    hands: list[Any] = []
    try:
        connected = time.monotonic()
        # Spread: a node more is worth more to a load than a process more.
        actor = ray.remote(num_cpus=1, max_restarts=0, scheduling_strategy="SPREAD")(_Actor)
        hands += [actor.remote() for _ in range(workers)]
        told = _placed(ray, hands, say)
        nodes = sorted({about["node"] for about in told})
        abouts = [{"node": nodes.index(about["node"]), "host": about["host"]} for about in told]
        facts = {
            "version": ray.__version__,
            "nodes": len(nodes),
            "connect_s": round(connected - began, 3),
            "place_s": round(time.monotonic() - connected, 3),
        }
        say(
            f"ray: {workers} workers on {len(nodes)} node{'s' * (len(nodes) > 1)}, connected in "
            f"{facts['connect_s']:.1f} s, placed in {facts['place_s']:.1f} s"
        )
        yield RayStaff(ray, hands, abouts, facts)
    finally:
        for hand in hands:
            with contextlib.suppress(Exception):
                ray.kill(hand)
        ray.shutdown()


def _import_ray() -> Any:
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
        import ray.exceptions
    except ImportError:
        raise UsageError("needs Ray, which is not installed", where="--ray", do="pip install 'loadgen[ray]'") from None
    return ray


def _connect(ray: Any, address: str, workers: int) -> None:
    where = f"--ray {address}"
    if address.startswith("ray://"):
        raise UsageError(
            "is a proxy, through which clocks cannot be compared",
            where=where,
            do="run loadgen on a node of the cluster (ray job submit), or give the HOST:PORT of its head",
        )
    logging.getLogger("ray").setLevel(logging.ERROR)
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == "local":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        options |= {"num_cpus": max(workers, cores()), "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    else:
        _knock(os.environ.get("RAY_ADDRESS", "auto") if address == "auto" else address, where)
    try:
        ray.init(address=address, **options)
    except Exception as bad:
        first = str(bad).strip().partition("\n")[0][:200]
        raise UsageError(f"no Ray cluster answers: {first}", where=where, do="start one with `ray start`") from None


def _knock(address: str, where: str) -> None:
    """A cluster that is not there is told at once: Ray itself would try for minutes."""
    host, colon, port = address.rpartition(":")
    if address == "auto":
        return
    if not colon or not port.isdigit() or not host:
        raise UsageError("is no address of a cluster", where=where, do="give auto, local or HOST:PORT")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    except (OSError, OverflowError) as bad:
        reason = getattr(bad, "strerror", None) or str(bad)
        raise UsageError(f"no Ray cluster answers: {reason}", where=where, do="start one with `ray start`") from None


def _placed(ray: Any, hands: list[Any], say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Wait until every hand answers, and check that all run this loadgen."""
    refs = [hand.about.remote() for hand in hands]
    began = time.monotonic()
    waiting: list[Any] = refs
    while waiting:
        _, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=_TELL_S)
        if not waiting:
            break
        room = f"the cluster has {ray.cluster_resources().get('CPU', 0):.0f} CPUs in all"
        if time.monotonic() - began > _PLACE_S:
            raise UsageError(f"{len(waiting)} of {len(hands)} workers found no place", where="--ray", do=room)
        say(f"ray: waiting for {len(waiting)} of {len(hands)} workers; {room}")
    try:
        told: list[dict[str, Any]] = ray.get(refs)
    except ray.exceptions.RayError as bad:
        lines = [line for line in str(bad).splitlines() if "Error" in line]
        what = (lines[-1] if lines else str(bad)).strip()[:200]
        do = "every node needs the same loadgen: pip install 'loadgen[ray]'"
        raise UsageError(f"a worker cannot start on its node: {what}", where="--ray", do=do) from None
    mine = metadata.version("loadgen")
    for about in told:
        if (theirs := about["versions"].get("loadgen")) != mine:
            do = "install the same on every node"
            raise UsageError(f"a node has loadgen {theirs}, this is {mine}", where="--ray", do=do)
    return told
