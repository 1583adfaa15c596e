"""The colours of the report, light and dark.

Knows: colour values and what each is for. Must not know: which chart or rule uses them.
Why: style sheet and charts must agree, in both themes and in a notebook. Series colours are of middle lightness, at
least 3:1 against both backgrounds, so that a chart needs only its ink redrawn when the theme changes.
"""

from __future__ import annotations

# One for each workload or load; a ninth begins again, told apart by its dash.
SERIES = ("#2f7fd1", "#d2632a", "#26926b", "#a35fc4", "#a8820f", "#d4527f", "#17919e", "#857060")
DASHES = ("solid", "dash", "dot", "dashdot")

# Where time goes. Prefill and decode keep their hue; what load adds to each is its lighter sister.
BEFORE, PREFILL, WAITING, DECODE, SLOWED = "#8a8f98", "#2f7fd1", "#7db4ec", "#d2632a", "#efa27c"
BAD = "#d64545"

# Token -> value. In a figure a token is written "@ink"; in the style sheet it is var(--ink).
THEMES: dict[str, dict[str, str]] = {
    "light": {
        "page": "#f6f7f9",
        "panel": "#ffffff",
        "ink": "#1c2128",
        "muted": "#5b6470",
        "grid": "#e3e6ea",
        "rule": "#cfd4da",
        "link": "#0b5cad",
        "good": "#177a41",
        "fair": "#8a5a00",
        "bad": "#b3261e",
        "good-wash": "#e5f4ea",
        "fair-wash": "#fdf3dc",
        "bad-wash": "#fdeae8",
        "heat-0": "#e4eefb",
        "heat-1": "#4e95dd",
        "heat-2": "#0b3c73",
    },
    "dark": {
        "page": "#0e1116",
        "panel": "#161b22",
        "ink": "#e6e9ed",
        "muted": "#9aa4b0",
        "grid": "#262d36",
        "rule": "#3a434e",
        "link": "#6cb0f5",
        "good": "#56c98a",
        "fair": "#e0b04a",
        "bad": "#ff8a80",
        "good-wash": "#11281b",
        "fair-wash": "#2c2410",
        "bad-wash": "#33191a",
        "heat-0": "#13283f",
        "heat-1": "#2f7fd1",
        "heat-2": "#c4e0ff",
    },
}


def series(i: int) -> tuple[str, str]:
    """(colour, dash) of the i-th series of a chart."""
    return SERIES[i % len(SERIES)], DASHES[i // len(SERIES) % len(DASHES)]
