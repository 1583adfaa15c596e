"""`loadgen catalog`: what the tool knows by name - GPUs, model shapes, workloads - and from where.

Knows: how the tables are printed. Must not know: what the facts are used for.
Why: whoever doubts a prediction can see the facts under it, with their sources.
"""

from __future__ import annotations

import json
from typing import Any

import click

from loadgen.errors import UsageError

KINDS = ("gpus", "shapes", "workloads")


@click.command(name="catalog")
@click.argument("kind", required=False, type=click.Choice(KINDS))
@click.option("--format", "form", default="text", type=click.Choice(["text", "json"]), show_default=True)
def command(kind: str | None, form: str) -> None:
    """List known GPUs, model shapes and workloads."""
    tables = {name: _rows(name) for name in ((kind,) if kind else KINDS)}
    if form == "json":
        click.echo(json.dumps(tables[kind] if kind else tables, indent=2, ensure_ascii=False))
        return
    for name, rows in tables.items():
        click.echo(f"{name} ({len(rows)})")
        for line in _table([{key: value for key, value in row.items() if key != "source"} for row in rows]):
            click.echo("  " + line)
    click.echo("Sources: --format json. n/a: the vendor gives no figure, or there is no such rate.")


def _rows(kind: str) -> list[dict[str, Any]]:
    return {"gpus": _gpus, "shapes": _shapes, "workloads": _workloads}[kind]()


def _gpus() -> list[dict[str, Any]]:
    from loadgen.roofline.catalog import gpus

    def scaled(value: float | None, unit: float) -> float | None:
        return None if value is None else round(value / unit, 4)

    return [
        {
            "name": one.name,
            "bf16_tflops": scaled(one.bf16_flop_per_s, 1e12),
            "fp8_tflops": scaled(one.fp8_flop_per_s, 1e12),
            "fp4_tflops": scaled(one.fp4_flop_per_s, 1e12),
            "int8_tops": scaled(one.int8_flop_per_s, 1e12),
            "memory_gb": scaled(one.memory_bytes, 1e9),
            "bandwidth_tb_per_s": scaled(one.bandwidth_bytes_per_s, 1e12),
            "ridge_bf16": round(one.ridge()),
            "link_gb_per_s": scaled(one.link_bytes_per_s, 1e9),
            "checked": one.checked,
            "note": one.note,
            "source": one.source,
        }
        for one in gpus()
    ]


def _shapes() -> list[dict[str, Any]]:
    from loadgen.roofline.catalog import shapes

    return [
        {
            "name": one.name,
            "params_b": round(one.total_params / 1e9, 3),
            "per_token_b": round((one.active_params + one.head_params) / 1e9, 3),
            "layers": one.layers,
            "hidden": one.hidden,
            "kv_bytes_per_token_bf16": 2 * one.kv_elements,
            "experts": f"{one.experts_per_token}/{one.experts}" if one.moe_layers else None,
            "window": f"{one.window} on {one.window_layers}" if one.window_layers else None,
            "note": one.note,
            "source": one.source,
        }
        for one in shapes()
    ]


def _workloads() -> list[dict[str, Any]]:
    from loadgen.store.resources import workload_dir

    files = sorted(workload_dir().glob("*.yaml"))
    if not files:
        raise UsageError("no workload files were found", do="reinstall loadgen")
    return [{"name": file.stem, "file": str(file)} for file in files]


def _table(rows: list[dict[str, Any]]) -> list[str]:
    cells = [list(rows[0])] + [["n/a" if value is None else str(value) for value in row.values()] for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
