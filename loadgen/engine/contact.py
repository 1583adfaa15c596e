"""Meets the endpoints of a run before any load: each is probed through the run's own transport, and written down.

Knows: what of a probe is kept with the run, and which endpoints must agree in what. Must not know: stages, warm-up.
Why: a run of several endpoints has one plan and one transport, so they must speak one dialect; all else may differ and
is recorded for each.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from loadgen.engine import provenance
from loadgen.engine.host import Secrets, public_url, scrubbed
from loadgen.engine.probe import Probe, Probed, base_urls
from loadgen.engine.runner import Target
from loadgen.engine.settings import Settings
from loadgen.engine.transport import Transport
from loadgen.errors import EndpointError
from loadgen.model import Capture, Clock, Exchange, PlannedRequest
from loadgen.plan.budget import Purse
from loadgen.wire.timeline import decode

_PATIENCE_S = 15.0  # for what is not a stream; the user's own limits may be shorter
_TRIAL_PATIENCE_S = 30.0  # for a few tokens, after the first
_KNOCK_S = 10.0  # for a connection to stand
_CLOSE_WAIT_S = 0.03  # a server that closes after its answer has done so by then


def knock(url: str) -> None:
    """Connect to an endpoint and hang up, so that one that is down is told before another is measured for an hour.

    Raises EndpointError where nothing takes the connection.
    """
    parts = urlsplit(base_urls(url)[0])
    try:
        socket.create_connection(
            (parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)), _KNOCK_S
        ).close()
    except OSError as bad:
        raise EndpointError(f"cannot be reached: {bad.strerror or bad}", where=public_url(url), do="is it up?") from bad


@dataclass(slots=True)
class Contact:
    """`reuse` turns False at the first endpoint that closes its connections without saying so."""

    settings: Settings
    transport: Transport
    clock: Clock
    purse: Purse | None
    say: Callable[[str], None]
    reuse: bool = True
    _headers: tuple[tuple[str, str], ...] = ()  # of the last trial's response

    async def all(self, given: dict[str, str]) -> tuple[list[Probed], dict[str, Any]]:
        """Every endpoint in order, and the run's record of them: the first one's, the rest of them under `others`.

        `given`: facts about the server that the user told. Raises EndpointError for one that cannot be used.
        """
        probed: list[Probed] = []
        records: list[dict[str, Any]] = []
        for url in (self.settings.url, *self.settings.others):
            one = await self._meet(url, probed[0].target.dialect if probed else self.settings.dialect)
            probed.append(one)
            records.append(self._record(url, one, given))
        return probed, records[0] | ({"others": records[1:]} if len(records) > 1 else {})

    async def _meet(self, url: str, dialect: str | None) -> Probed:
        settings, secrets = self.settings, Secrets.of(url, self.settings.headers)
        spans = [s for s in (settings.limits.first_ns, settings.limits.total_ns) if s is not None]
        patience_s = min([_PATIENCE_S, *(span * 1e-9 for span in spans)])
        probe = Probe(settings.headers, settings.security, self._trial, self.say, patience_s)
        try:
            return await probe.run(url, model=settings.model, dialect=dialect, wanted=settings.features)
        except EndpointError as bad:
            where = public_url(bad.where) if "://" in bad.where else bad.where
            raise EndpointError(secrets.scrub(bad.what), where=where, do=bad.do) from None

    async def _trial(self, target: Target, planned: PlannedRequest) -> Exchange:
        settings, transport = self.settings, self.transport
        capture = Capture(planned, target.dialect, dispatched_ns=self.clock.now_ns())
        async with asyncio.timeout(_TRIAL_PATIENCE_S + (settings.limits.first_ns or 0) * 1e-9) as patience:
            await transport.stream(capture, target.url, target.body(planned))
        if patience.expired():  # the exchange takes the cancellation as its end, it does not raise
            raise EndpointError("a trial of a few tokens did not end", where=target.url, do="no load was sent")
        self._headers = capture.headers
        await asyncio.sleep(_CLOSE_WAIT_S)
        if capture.complete and not transport.kept_alive(target.url):
            transport.never_reuse()
            self.reuse = False
        exchange = scrubbed(decode(capture), Secrets.of(settings.url, settings.headers))
        if self.purse is not None:
            self.purse.pay(exchange)
        return exchange

    def _record(self, url: str, probed: Probed, given: dict[str, str]) -> dict[str, Any]:
        secrets, target = Secrets.of(url, self.settings.headers), probed.target
        told = {**probed.provenance, "response_headers": provenance.headers_told(self._headers), "given": given}
        return {
            "url": public_url(target.url),
            "model": target.model,
            "dialect": target.dialect,
            "engine": probed.engine,
            "version": probed.version,
            "context_limit": probed.context_limit,
            "rtt_ns": probed.rtt_ns,
            "ignore_eos": target.features.ignore_eos,
            "min_tokens": target.features.min_tokens,
            "include_usage": target.features.include_usage,
            "max_tokens_field": target.features.max_tokens_field,
            "keep_alive": self.reuse,
            "provenance": provenance.scrub(told, secrets.scrub),
            "trials": [secrets.scrub(line) for line in probed.trials],
        }
