// Draws each chart when it comes near the screen, in the colours of the theme, and again when the theme changes.
(() => {
  "use strict";
  const specs = JSON.parse(document.getElementById("chart-data").textContent);
  const plots = [...document.querySelectorAll("[data-chart]")];
  const style = getComputedStyle(document.documentElement);
  const token = (name) => style.getPropertyValue("--" + name).trim();

  // "@ink" becomes the theme's ink, wherever it stands.
  const resolved = (value) => {
    if (typeof value === "string") return (value[0] === "@" && token(value.slice(1))) || value;
    if (Array.isArray(value)) return value.some((one) => typeof one === "string" || (one && typeof one === "object")) ? value.map(resolved) : value;
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, resolved(one)]));
  };

  const themed = (layout, plot) => {
    const out = resolved(layout);
    const narrow = plot.clientWidth < 480;
    out.paper_bgcolor = out.plot_bgcolor = "rgba(0,0,0,0)";
    out.font = { family: getComputedStyle(document.body).fontFamily, size: 12, color: token("ink") };
    out.hoverlabel = { bgcolor: token("panel"), bordercolor: token("rule"), font: { color: token("ink") }, namelength: -1 };
    out.modebar = { color: token("muted"), activecolor: token("ink"), bgcolor: "rgba(0,0,0,0)" };
    if (document.documentElement.classList.contains("paper")) out.width = 680;
    // A finger that drags over a chart wants to scroll the page.
    out.dragmode = matchMedia("(pointer: coarse)").matches ? false : "zoom";
    for (const name of Object.keys(out).filter((key) => /^[xy]axis/.test(key))) {
      const colors = { gridcolor: token("grid"), linecolor: token("rule"), tickcolor: token("rule"), tickfont: { color: token("muted"), size: narrow ? 10 : 12 } };
      out[name] = { ...colors, ...out[name] };
      out[name].title = { ...out[name].title, font: { size: narrow ? 10.5 : 13 } };
    }
    return out;
  };

  const config = {
    responsive: true,
    displaylogo: false,
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "zoomIn2d", "zoomOut2d"],
  };
  // The library is a second's work: the page can be read and used before it is run, which the first chart does.
  const library = () => {
    if (window.Plotly) return;
    const script = document.createElement("script");
    script.textContent = document.getElementById("plotly").textContent;
    document.head.append(script);
  };
  const drawn = new Set();
  const draw = (plot) => {
    library();
    drawn.add(plot);
    const { data, layout } = specs[plot.dataset.chart];
    return Plotly.react(plot, resolved(data), themed(layout, plot), config);
  };

  const near = new IntersectionObserver(
    (entries) => {
      for (const entry of entries.filter((one) => one.isIntersecting)) {
        near.unobserve(entry.target);
        draw(entry.target);
      }
    },
    { rootMargin: "600px" },
  );
  for (const plot of plots) near.observe(plot);

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const plot of drawn) draw(plot);
  });
  // On paper all but the longest tables is open, and charts are drawn in light colours, as wide as the sheet.
  const paper = document.documentElement.classList;
  addEventListener("beforeprint", () => {
    paper.add("paper");
    for (const one of document.querySelectorAll("details:not(.long)")) one.open = true;
    for (const plot of plots) draw(plot);
  });
  addEventListener("afterprint", () => {
    paper.remove("paper");
    for (const plot of drawn) draw(plot);
  });
})();
