"""The page and the comment of a fit.

Knows: which template shows a fit. Must not know: how anything in it is computed, laid out or drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loadgen.model import Finding
from loadgen.report import figures
from loadgen.report.fitjson import fit_json
from loadgen.report.fitview import fit_view, overview
from loadgen.report.render import environment, page
from loadgen.roofline.causes import Cause
from loadgen.roofline.fitted import Fit
from loadgen.roofline.remedies import Remedy

__all__ = ["fit_json", "fit_markdown", "fit_page", "render_fits"]


def fit_page(
    fit: Fit, causes: Sequence[Cause] = (), remedies: Sequence[Remedy] = (), findings: Sequence[Finding] = ()
) -> str:
    """A page that is complete in itself, for a fit of a table or of several runs."""
    return render_fits([fit_json(fit, causes, remedies, findings)], "html")


def fit_markdown(
    fit: Fit, causes: Sequence[Cause] = (), remedies: Sequence[Remedy] = (), findings: Sequence[Finding] = ()
) -> str:
    """The same in short, for a comment or a terminal."""
    return render_fits([fit_json(fit, causes, remedies, findings)], "md")


def render_fits(fits: Sequence[Mapping[str, Any]], form: str) -> str:
    """The JSON of fits as `html`, one page with sections for each, or as `md`, one after the other."""
    if form == "md":
        template = environment().get_template("fit.md.j2")
        return "\n\n".join(template.render(fit=fit_view(one)).strip() for one in fits)
    several = len(fits) > 1
    shown = [fit_view(one, f"-{number}" if several else "") for number, one in enumerate(fits, 1)]
    charts = {f"{name}{one['at']}": chart for one in shown for name, chart in figures.fit(one["series"]).items()}
    title = f"{len(fits)} fits" if several else shown[0]["title"]
    tagline = "One fit for each deployment." if several else shown[0]["headline"]
    view = {"title": title, "tagline": tagline, "fits": shown, "overview": overview(fits, shown) if several else None}
    return page("fitpage.html.j2", view, charts)
