"""`loadgen selfcheck`: what this client can honestly measure on this machine.

Knows: how the result is said to a user. Must not know: how it is measured (`simulator.selfcheck` does).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from loadgen.simulator.selfcheck import Rung, SelfCheck, Trial

_BUDGET_S = {False: 50.0, True: 12.0}


@click.command("selfcheck")
@click.option("--quick", is_flag=True, help="About 12 seconds instead of 50; limits are found less finely.")
@click.option("--format", "fmt", default="text", type=click.Choice(["text", "json"]), show_default=True)
def command(quick: bool, fmt: str) -> int:
    """Measure a null endpoint on this machine, whose own send stamps are the truth, and say what this client can do.

    For 32, 256 and 1,024 streams: the highest rate of token events at which under 1 % of them share a receive and the
    p99 error of inter-token gaps stays under 0.5 ms. Then how late sends are in an open loop of 1,000 requests/s.
    Let nothing else run meanwhile.
    """
    import json

    from loadgen.simulator.selfcheck import selfcheck

    found = selfcheck(_BUDGET_S[quick], lambda line: click.echo(line, err=True))
    click.echo(json.dumps(to_json(found), indent=2) if fmt == "json" else to_text(found))
    return 0


def to_json(found: SelfCheck) -> dict[str, Any]:
    """Plain values in SI units; null where something was not measured."""
    loop = found.open_loop
    return {
        "cores": found.cores,
        "load": found.load,
        "pinned": found.pinned,
        "stamp_source": found.stamp_source,
        "clock_error_s": found.clock_error_ns * 1e-9,
        "ladder": [
            {
                "streams": rung.streams,
                "events_per_s": rung.best.rate_per_s if rung.best else None,
                "limit": rung.limit,
                "best": _trial(rung.best) if rung.best else None,
                "trials": [_trial(trial) for trial in rung.trials],
            }
            for rung in found.ladder
        ],
        "open_loop": {
            "requests_per_s": loop.rate_per_s,
            "requests": loop.requests,
            "failed": loop.failed,
            "send_late_p50_s": loop.late_p50_ns * 1e-9,
            "send_late_p99_s": loop.late_p99_ns * 1e-9,
            "send_late_max_s": loop.late_max_ns * 1e-9,
        },
        "wall_s": found.wall_s,
    }


def _trial(trial: Trial) -> dict[str, Any]:
    def seconds(ns: float | None) -> float | None:
        return None if ns is None else ns * 1e-9

    return {
        "asked_events_per_s": trial.asked_per_s,
        "events_per_s": trial.rate_per_s,
        "events": trial.events,
        "trouble": trial.trouble,
        "failed": trial.failed,
        "shared_receives": trial.shared,
        "itl_error_p99_s": seconds(trial.gap_error_p99_ns),
        "stamp_error_p50_s": seconds(trial.stamp_error_p50_ns),
        "stamp_error_p99_s": seconds(trial.stamp_error_p99_ns),
        "server_late_p99_s": seconds(trial.server_late_p99_ns),
        "client_cpu": trial.client_cpu,
        "loop_lag_p99_s": seconds(trial.lag_p99_ns),
        "loop_lag_max_s": seconds(trial.lag_max_ns),
    }


_CALM_LOAD = 1.0
_COLUMNS = ("streams", "events/s", "shared", "ITL error p99", "stamp error p50", "p99", "loop lag p99", "CPU", "limit")


def to_text(found: SelfCheck) -> str:
    """The table, and what it means for a user."""
    lines = ["What this client can honestly measure on this machine", ""]
    if found.load > _CALM_LOAD:
        lines += [f"Other work kept this machine busy (load {found.load:.1f}): these figures are of such a moment.", ""]
    rows = [_COLUMNS, *(_row(rung) for rung in found.ladder)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
    lines += ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    loop = found.open_loop
    lines += [
        "",
        f"sends: p50 {_us(loop.late_p50_ns)}, p99 {_us(loop.late_p99_ns)}, at most {_us(loop.late_max_ns)} after their "
        f"time (Poisson, {loop.rate_per_s:,.0f} requests/s, {loop.requests:,} sent, {loop.failed} failed)",
        f"stamps: {found.stamp_source}, tied to the monotonic clock within {_us(found.clock_error_ns)}",
        "",
        *(_meaning(rung) for rung in found.ladder),
    ]
    if loop.late_p99_ns > 1e6:
        lines.append(
            "Sends are over 1 ms late here: lower the rate, use --workers, or leave the machine to the client."
        )
    if not found.pinned:
        lines.append("Client and null endpoint shared one core, so these are lower bounds.")
    return "\n".join(lines)


def _row(rung: Rung) -> tuple[str, ...]:
    best = rung.best
    if best is None:
        return (f"{rung.streams:,}", "none", *["n/a"] * (len(_COLUMNS) - 3), rung.limit)
    return (
        f"{rung.streams:,}",
        f"{best.rate_per_s:,.0f}",
        f"{best.shared:.2%}",
        _us(best.gap_error_p99_ns),
        _us(best.stamp_error_p50_ns),
        _us(best.stamp_error_p99_ns),
        _us(best.lag_p99_ns),
        f"{best.client_cpu:.0%}",
        rung.limit,
    )


def _meaning(rung: Rung) -> str:
    if rung.best is None:
        tried = ", ".join(f"{rate:,.0f}" for rate in sorted({trial.asked_per_s for trial in rung.trials}))
        return f"{rung.streams:,} users: no rate that was tried was good ({tried or 'none'} events/s: {rung.limit})."
    least = "at least " if rung.limit in ("null endpoint", "time") else ""
    beyond = "what this machine's null endpoint could send" if least else "beyond that use --workers"
    per_user = rung.best.rate_per_s / rung.streams
    return (
        f"{rung.streams:,} users: good to {least}{rung.best.rate_per_s:,.0f} token events/s in all, which is "
        f"{per_user:,.0f} tokens/s for each; {beyond}."
    )


def _us(ns: float | None) -> str:
    if ns is None:
        return "n/a"
    return f"{ns / 1e6:,.1f} ms" if ns >= 1e7 else f"{ns / 1000:,.0f} µs" if ns >= 1e4 else f"{ns / 1000:.2g} µs"
