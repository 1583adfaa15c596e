"""`loadgen explain METRIC`: what a metric is, from the table that computes it.

Knows: how one line of the table is printed. Must not know: any formula.
"""

from __future__ import annotations

import click


@click.command("explain")
@click.argument("metric", required=False)
def command(metric: str | None) -> None:
    """Explain METRIC: its formula, unit and caveats. Without METRIC, list them all."""
    from loadgen.analysis import definitions

    if metric is None:
        width = max(map(len, definitions.METRICS))
        for line in definitions.METRICS.values():
            click.echo(f"{line.name:<{width}}  {line.unit:<10}  {line.formula}")
        return
    found = definitions.metric(metric)
    unit = "a share (no unit)" if found.unit == "1" else found.unit
    click.echo(f"{found.name} = {found.formula}")
    click.echo(f"  unit        {unit}")
    click.echo(f"  better      {found.better}")
    click.echo(f"  of each     {found.of}")
    click.echo(f"  statistics  {', '.join(found.stats)}")
    if found.caveat:
        click.echo(f"  note        {found.caveat}")
