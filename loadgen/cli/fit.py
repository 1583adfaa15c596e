"""`loadgen fit`: from measured cells to an engine's parameters, what limits it, and what another GPU would do.

Knows: flags, which files become which fits, exit codes. Must not know: estimation, explanation (`roofline`), tables of
text (`store`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loadgen.cli.doing import Tell, doing
from loadgen.cli.values import FORM_HELP, read_form
from loadgen.errors import UsageError

if TYPE_CHECKING:
    from loadgen.roofline.account import Account
    from loadgen.roofline.catalog import Gpu
    from loadgen.roofline.cells import Cell
    from loadgen.roofline.fitted import Fit
    from loadgen.roofline.named import Known
    from loadgen.roofline.overlay import Prediction
    from loadgen.roofline.passes import Deployment

LEAST = 3  # cells, of which a fit is made


@click.command("fit")
@click.argument("inputs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN|TABLE.csv|RESULT ...")
@click.option("--gpu", default="", help="GPU that was measured: chooses in a table, or says it.")
@click.option("--gpus", default=None, type=click.IntRange(1), help="GPUs, tensor-parallel.")
@click.option("--shape", default="", help="Model: a catalogue name, a Hugging Face name, or a config.json.")
@click.option("--dtype", default="", help="Preset: bf16, fp8, w8a8, w4a16, mxfp4, nvfp4 ...  [default: bf16]")
@click.option("--weights", default="", help="Type of the weights, in place of the preset's.")
@click.option("--compute", default="", help="Type of the matrix products, in place of the preset's.")
@click.option("--kv", default="", help="Type of the KV cache, in place of the preset's.")
@click.option(
    "--holdout",
    default="alternate",
    show_default=True,
    type=click.Choice(["alternate", "shape", "none"]),
    help="Cells to test on: every second, whole shapes in turn, or none but those that a profile held out.",
)
@click.option(
    "--joint", is_flag=True, help="One fit of all deployments of a table, as one engine. Several files: always."
)
@click.option(
    "--predict-on", multiple=True, metavar="GPU[,gpus]", help="Carry the fit to another GPU; may be repeated."
)
@click.option(
    "--overlay",
    type=click.Path(path_type=Path),
    metavar="TABLE.csv|RUN",
    help="Hold the prediction against what was measured there.",
)
@click.option(
    "--no-priors",
    is_flag=True,
    help="Without the priors from kernel tables; engines slower than any known are fitted, too.",
)
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Fixes the bootstrap.")
@click.option("--format", "form", type=click.Choice(["text", "json", "md", "html"]), help=FORM_HELP)
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write to FILE.")
def command(inputs: tuple[Path, ...], form: str | None, output: Path | None, **flags: Any) -> None:
    """Fit a serving engine to measured cells: parameters with intervals, what limits it, and what would help.

    The cells come from runs (best: `loadgen run URL --profile roofline`), a TABLE.csv, or result files of vLLM bench,
    GuideLLM, AIPerf, GenAI-Perf, EvalScope, inference-perf, SGLang or InferenceMAX. Each deployment of a table is
    fitted by itself; several files are taken as one engine on several deployments. Without GPU and model black-box
    constants are fitted (those that `predict --constants` takes).
    """
    form = read_form(form, output)
    accounts, notes = _accounts(inputs, flags)
    _keep(inputs, accounts)
    text = _rendered(accounts, notes, form)
    if output is None:
        click.echo(text)
        return
    from loadgen.report.render import write

    click.echo(write(output, text + "\n"))


def _keep(inputs: Sequence[Path], accounts: Sequence[Account]) -> None:
    """Keep the fit of a run with the run, whose report shows it then."""
    from loadgen.errors import StorageError
    from loadgen.store.fitfile import write_fit
    from loadgen.store.runfile import is_run

    if len(inputs) != 1 or len(accounts) != 1 or not is_run(inputs[0]):
        return
    try:
        path = write_fit(inputs[0], _plain(accounts[0]))
    except StorageError as bad:  # a run that may only be read is fitted all the same
        click.echo(f"loadgen: the fit was not kept with the run: {bad}", err=True)
    else:
        click.echo(f"loadgen: kept as {path}; loadgen report {inputs[0]} shows it", err=True)


def _rendered(accounts: Sequence[Account], notes: Sequence[str], form: str) -> str:
    if form == "text":
        from loadgen.report.fittext import to_text

        return to_text(accounts)
    fits = [_plain(one) for one in accounts]
    if form == "json":
        import json

        whole = fits[0] if len(fits) == 1 else _several(fits)
        return json.dumps({**whole, "notes": list(notes)}, indent=2, ensure_ascii=False, allow_nan=False)
    from loadgen.report.fitpage import render_fits

    return render_fits(fits, form).strip()


def _plain(one: Account) -> dict[str, Any]:
    from loadgen.report.fitjson import fit_json
    from loadgen.roofline.overlay import prediction_json

    predictions = [prediction_json(prediction) for prediction in one.predictions]
    return {"label": one.label, **fit_json(one.fit, one.causes, one.remedies, one.findings, predictions)}


def _several(fits: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Several fits under the keys of one: what is the same, cells and findings of all, and each fit under `fits`."""
    first = fits[0]
    same = {key: first[key] if all(one[key] == first[key] for one in fits) else None for key in first}
    lists = {
        key: [{**row, "fit": one["label"]} for one in fits for row in one[key]]
        for key in first
        if isinstance(first[key], list)
    }
    error = {key: _pooled([one["error"].get(key) for one in fits]) for key in first["error"]}
    return {**same, **lists, "parameters": {}, "error": error, "fits": list(fits)}


def _pooled(errors: Sequence[dict[str, Any] | None]) -> dict[str, Any] | None:
    """The medians over fits of each figure; cells are added up."""
    from statistics import median

    known = [one for one in errors if one is not None]
    if not known:
        return None
    found: dict[str, Any] = {}
    for name in known[0]:
        values = [one[name] for one in known if one[name] is not None]
        found[name] = sum(values) if name == "n" else median(values) if values else None
    return found


def _accounts(inputs: Sequence[Path], flags: dict[str, Any]) -> tuple[list[Account], list[str]]:
    """The fits that files and flags ask for, each with what follows from it."""
    from loadgen.roofline.account import account

    known = read_known(flags)
    targets = [_target(text) for text in flags["predict_on"]]  # a mistake is told before anything is fitted
    cells, notes = _cells(inputs, known)
    measured = _overlay(flags["overlay"])
    found = []
    groups = list(_groups(cells, joint=flags["joint"] or len(inputs) > 1))
    with doing(f"fitting {sum(map(len, groups))} cells") as tell:
        for number, group in enumerate(groups, 1):
            which = f"{number} of {len(groups)}, " if len(groups) > 1 else ""

            def step(word: str, which: str = which) -> None:
                tell(which + word)

            made = _fit(group, flags, step)
            step("predictions" if targets or measured else "what limits it, and what would help")
            found.append(account(made, tuple(_predictions(made, targets, measured)), notes))
    return found, notes


def read_known(flags: dict[str, Any]) -> Known:
    """What the flags say of the deployment. Raises UsageError for names that are not known."""
    from loadgen.cli.hardware import read_shape
    from loadgen.roofline.named import Known, find_gpu
    from loadgen.roofline.precision import dtypes

    gpu = find_gpu(flags["gpu"]) if flags["gpu"] else None
    kinds = {name: flags[name] for name in ("weights", "compute", "kv")}
    dtypes(flags["dtype"] or "bf16", gpu, **kinds)  # a mistake is told before any file is read
    shape = read_shape(flags["shape"]) if flags["shape"] else None
    return Known(gpu, flags["gpus"], shape, flags["dtype"], **kinds)


def _cells(inputs: Sequence[Path], known: Known) -> tuple[list[Cell], list[str]]:
    from loadgen.store.inputs import read_cells

    cells: list[Cell] = []
    notes: list[str] = []
    for path in inputs:
        found = read_cells(path, known)
        cells += found.cells
        notes += found.notes
    if (known.gpu or known.shape) and all(cell.deployment is None for cell in cells):
        flag, what, lacking = ("--gpu", "model", "--shape") if known.gpu else ("--shape", "GPU", "--gpu")
        do = f"give {lacking}, too, or leave {flag} out to fit black-box constants"
        raise UsageError(f"says nothing where the {what} is not known", where=flag, do=do)
    return cells, list(dict.fromkeys(notes))


def _groups(cells: Sequence[Cell], *, joint: bool) -> Iterator[tuple[Cell, ...]]:
    """The cells of each fit; deployments with too few cells for one are told and left out, unless all are fitted."""
    if joint:
        yield tuple(cells)
        return
    by_label: dict[str, list[Cell]] = {}
    for cell in cells:
        by_label.setdefault(cell.label, []).append(cell)
    enough = {label: group for label, group in by_label.items() if len(group) >= LEAST}
    if not enough and len(by_label) > 1:
        raise UsageError(f"no deployment has {LEAST} cells", do="give --joint to fit them as one engine")
    for label in by_label.keys() - enough.keys() if len(by_label) > 1 else ():
        click.echo(f"loadgen: {label}: {len(by_label[label])} cells are too few for a fit, left out", err=True)
    yield from (tuple(group) for group in (enough or by_label).values())


def _fit(cells: Sequence[Cell], flags: dict[str, Any], tell: Tell) -> Fit:
    import numpy as np

    from loadgen.roofline.fit import fit

    rng = np.random.default_rng(flags["seed"])
    return fit(cells, holdout=flags["holdout"], priors=not flags["no_priors"], rng=rng, tell=tell)


# -- predictions -----------------------------------------------------------------------------------------------------


def _overlay(path: Path | None) -> tuple[Cell, ...]:
    if path is None:
        return ()
    from loadgen.store.inputs import read_cells

    return read_cells(path, rates=True).cells


def _predictions(
    made: Fit, targets: Sequence[tuple[Gpu, int | None]], measured: Sequence[Cell]
) -> Iterator[Prediction]:
    """The fit on each GPU that was asked for: as the overlay's deployments there, else as the fit's own. Without such a
    GPU, on all deployments of the overlay that were not fitted."""
    from dataclasses import replace

    from loadgen.roofline.overlay import predict_on

    own = made.deployment
    if own is None and (targets or measured):
        raise UsageError("needs a fit of a known GPU and model", where="--predict-on", do="give --gpu and --shape")
    if own is None:
        return
    there: list[Deployment] = []
    measured = [_capped_as_told(cell, [gpu for gpu, _ in targets]) for cell in measured]
    for gpu, gpus in targets:
        known = [cell.deployment for cell in measured if _is_on(cell, gpu, gpus)]
        there += [where for where in known if where is not None] or [replace(own, gpu=gpu, gpus=gpus or own.gpus)]
    if not targets:
        there = [cell.deployment for cell in measured if cell.deployment not in (None, own)]
    for where in dict.fromkeys(there):
        yield predict_on(made, where, measured)


def _capped_as_told(cell: Cell, targets: Sequence[Gpu]) -> Cell:
    """The cell on the GPU of the flags, where its file says that the GPU was power-capped but not how far."""
    from dataclasses import replace

    from loadgen.roofline.named import is_untold

    where = cell.deployment
    told = next((gpu for gpu in targets if where is not None and is_untold(where.gpu, gpu)), None)
    return cell if told is None or where is None else replace(cell, deployment=replace(where, gpu=told))


def _is_on(cell: Cell, gpu: Gpu, gpus: int | None) -> bool:
    where = cell.deployment
    return where is not None and where.gpu == gpu and gpus in (None, where.gpus)


def _target(text: str) -> tuple[Gpu, int | None]:
    """`h200-sxm` or `h200-sxm,4`."""
    from loadgen.roofline.named import find_gpu

    name, comma, number = (part.strip() for part in text.partition(","))
    if comma and not (number.isdecimal() and int(number) > 0):
        raise UsageError("is not GPU or GPU,gpus", where=f"--predict-on {text}", do="write h200-sxm or h200-sxm,4")
    return find_gpu(name), int(number) if comma else None
