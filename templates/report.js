// Draws the charts: their data stands in the page as JSON, their colours are swapped when the system turns dark.
// Knows nothing of what a chart shows. All numbers come from the page; nothing is fetched.
(() => {
  "use strict";
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const figures = read("figures");
  const themes = read("themes");
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const FONT = getComputedStyle(document.body).fontFamily;
  const PRINT_WIDTH = 680;
  const NARROW = 520;

  // A copy with every "@token" replaced by its colour.
  const resolved = (value, tokens) => {
    if (typeof value === "string") return value[0] === "@" && value.slice(1) in tokens ? tokens[value.slice(1)] : value;
    if (Array.isArray(value)) return value.map((one) => resolved(one, tokens));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, resolved(one, tokens)]));
  };

  // What the figures leave to the page: colours and sizes of text and lines.
  const dressed = (layout, tokens, narrow) => {
    const size = narrow ? 10.5 : 12;
    for (const [key, axis] of Object.entries(layout)) {
      if (!/^[xy]axis\d*$/.test(key)) continue;
      axis.gridcolor = tokens.grid;
      axis.linecolor = tokens.rule;
      axis.tickfont = { size, color: tokens.muted };
      axis.title = { ...axis.title, font: { size: size + 0.5, color: tokens.ink } };
      if (narrow && axis.nticks === undefined && axis.dtick === undefined) axis.nticks = 6;
    }
    const hoverlabel = { bgcolor: tokens.panel, bordercolor: tokens.rule, font: { color: tokens.ink, family: FONT } };
    const font = { family: FONT, size, color: tokens.ink };
    return { ...layout, font, hoverlabel, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)" };
  };

  const draw = (element, theme, width) => {
    const tokens = themes[theme];
    const figure = figures[element.dataset.chart];
    const { data, layout } = resolved(figure, tokens);
    const narrow = (width || element.clientWidth) < NARROW;
    const full = { ...dressed(layout, tokens, narrow), height: figure.height };
    if (width) full.width = width;
    const config = { displaylogo: false, responsive: !width, modeBarButtonsToRemove: ["lasso2d", "select2d"] };
    return Plotly.react(element, data, full, config);
  };

  const elements = [...document.querySelectorAll("[data-chart]")];
  let round = 0;
  // One chart at a time, so that the page answers in between.
  const drawAll = async () => {
    const mine = ++round;
    for (const element of elements) {
      await new Promise((resolve) => setTimeout(resolve));
      if (mine !== round) return;
      await draw(element, dark.matches ? "dark" : "light");
    }
    document.documentElement.dataset.charts = "drawn";
  };

  dark.addEventListener("change", drawAll);
  window.addEventListener("beforeprint", () => elements.forEach((element) => draw(element, "light", PRINT_WIDTH)));
  window.addEventListener("afterprint", drawAll);
  drawAll();
})();
