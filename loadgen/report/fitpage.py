"""The page and the comment of a fit.

Knows: which template shows a fit. Must not know: how anything in it is computed, laid out or drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loadgen.model import Finding
from loadgen.report import figures
from loadgen.report.fitjson import fit_json
from loadgen.report.fitview import fit_view
from loadgen.report.render import environment, page
from loadgen.roofline.causes import Cause
from loadgen.roofline.fitted import Fit
from loadgen.roofline.remedies import Remedy

__all__ = ["fit_json", "fit_markdown", "fit_page", "render_fit"]


def fit_page(
    fit: Fit, causes: Sequence[Cause] = (), remedies: Sequence[Remedy] = (), findings: Sequence[Finding] = ()
) -> str:
    """A page that is complete in itself, for a fit of a table or of several runs."""
    return render_fit(fit_json(fit, causes, remedies, findings), "html")


def fit_markdown(
    fit: Fit, causes: Sequence[Cause] = (), remedies: Sequence[Remedy] = (), findings: Sequence[Finding] = ()
) -> str:
    """The same in short, for a comment or a terminal."""
    return render_fit(fit_json(fit, causes, remedies, findings), "md")


def render_fit(fit: Mapping[str, Any], form: str) -> str:
    """A fit's JSON as `html` or `md`."""
    shown = fit_view(fit)
    if form == "md":
        return environment().get_template("fit.md.j2").render(fit=shown)
    return page("fitpage.html.j2", {"title": shown["title"], "fit": shown}, figures.fit(shown["series"]))
