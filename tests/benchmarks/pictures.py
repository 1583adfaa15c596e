"""The pictures of the README: real runs, their pages, and what a browser shows of them.

    python -m tests.benchmarks.pictures [--runs FOLDER] [--out docs]

What FOLDER holds already is taken as it is: `demo` (the run of `loadgen demo`), `h100` and `h200` (chat on a simulated
endpoint each), `fit.html` (of the published table in `examples/`). Nothing is added to a page for its picture: a
run that a busy machine has spoilt says so. Needs Chromium.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

# Name of the picture -> page, section that it begins with, width and height in pixels, theme.
PICTURES: dict[str, tuple[str, str, int, int, str]] = {
    "report-light": ("demo/report.html", "", 1280, 1250, "light"),
    "report-dark": ("demo/report.html", "#load", 1280, 1000, "dark"),
    "report-dark-phone": ("demo/report.html", "", 375, 1400, "dark"),
    "compare": ("h200/compare.html", "", 1280, 1150, "light"),
    "fit": ("fit.html", "", 1280, 1250, "light"),
}
_LOAD = ("-w", "chat", "--concurrency", "8,32", "--requests", "96", "--shape", "llama-3.1-8b", "--dtype", "bf16")
_DRAWN = """async () => {
  for (const plot of document.querySelectorAll('[data-chart]')) {
    const box = plot.getBoundingClientRect();
    for (let i = 0; i < 1000 && box.top < innerHeight && box.bottom > 0 && !plot.querySelector('.main-svg'); i++)
      await new Promise(done => setTimeout(done, 10));
  }
}"""


def main() -> None:
    """Make what is missing, then the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=None, help="runs that are there already, and where to leave more")
    parser.add_argument("--out", type=Path, default=Path("docs"))
    arguments = parser.parse_args()
    runs: Path = arguments.runs or Path(tempfile.mkdtemp(prefix="loadgen-pictures-"))
    runs.mkdir(parents=True, exist_ok=True)
    if not (runs / "demo").exists():
        _loadgen("demo", "-o", runs / "demo")
    for gpu in ("h100", "h200"):
        if not (runs / gpu).exists():
            _measure(f"{gpu}-sxm", runs / gpu)
    _loadgen("report", runs / "demo")
    _loadgen("compare", runs / "h100", runs / "h200", "-o", runs / "h200" / "compare.html")
    if not (runs / "fit.html").exists():
        table = "examples/h100-qwen3-32b.csv"
        _loadgen("fit", table, "--predict-on", "h200-sxm", "--format", "html", "-o", runs / "fit.html")
    _draw(runs, arguments.out)


def _loadgen(*words: str | Path) -> None:
    subprocess.run([sys.executable, "-m", "loadgen", *map(str, words)], check=True)


def _measure(gpu: str, run: Path) -> None:
    """The load on a simulated endpoint of this GPU."""
    serve = [sys.executable, "-m", "loadgen", "simulate", "--gpu", gpu, "--shape", "llama-3.1-8b"]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            _loadgen("run", server.stdout.readline().strip(), *_LOAD, "--gpu", gpu, "-o", run)
        finally:
            server.terminate()


def _draw(runs: Path, out: Path) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, (page, section, width, height, theme) in PICTURES.items():
            _picture(browser, f"{(runs / page).resolve().as_uri()}{section}", out / f"{name}.png", width, height, theme)
        browser.close()


def _picture(browser: Any, uri: str, file: Path, width: int, height: int, theme: str) -> None:
    size = {"width": width, "height": height}
    with browser.new_context(viewport=size, color_scheme=theme, offline=True, reduced_motion="reduce") as context:
        page = context.new_page()
        page.goto(uri)
        page.evaluate(_DRAWN)
        page.wait_for_timeout(500)
        page.screenshot(path=file)
    print(f"{file}: {file.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
