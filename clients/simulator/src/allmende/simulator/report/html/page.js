"use strict";
// Draws the plots that the page carries as JSON, in the page's own colours, and again when the reader turns light into dark.
(() => {
  const plots = JSON.parse(document.getElementById("plots").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const touch = matchMedia("(pointer: coarse)").matches;
  const narrow = () => document.documentElement.clientWidth < 640;

  // `var(--ink)` in a value becomes the colour that the style sheet gives it now.
  const coloured = (value, style) => {
    if (typeof value === "string") {
      return value.startsWith("var(") ? style.getPropertyValue(value.slice(4, -1)).trim() : value;
    }
    if (Array.isArray(value)) {
      return typeof value[0] === "object" && value[0] !== null ? value.map((each) => coloured(each, style)) : value;
    }
    if (value !== null && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, coloured(each, style)]));
    }
    return value;
  };

  const axis = (own, style) => ({
    gridcolor: style.getPropertyValue("--grid").trim(), linecolor: style.getPropertyValue("--line").trim(),
    zeroline: false, automargin: true, fixedrange: touch, ...own,
  });

  const draw = (plot) => {
    const style = getComputedStyle(document.documentElement);
    const own = coloured(plot.layout, style);
    const layout = {
      height: plot.height, margin: { l: 48, r: 12, t: plot.small ? 10 : 30, b: 40 }, showlegend: false, hovermode: "x",
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", dragmode: touch ? false : "zoom", bargap: 0.1,
      font: { color: style.getPropertyValue("--ink").trim(), family: "system-ui, sans-serif", size: 12 },
      legend: { orientation: "h", y: narrow() ? -0.3 : 1.02, yanchor: narrow() ? "top" : "bottom", x: 0 },
      hoverlabel: { namelength: -1 },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: style.getPropertyValue("--soft").trim() }, ...own,
    };
    for (const name of ["xaxis", "yaxis", "yaxis2"]) {
      if (own[name] !== undefined) layout[name] = axis(own[name], style);
    }
    const config = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["lasso2d", "select2d"] };
    if (plot.small) config.displayModeBar = false;
    Plotly.react(plot.id, coloured(plot.traces, style), layout, config);
  };

  const drawn = new Set();
  const all = () => plots.filter((plot) => drawn.has(plot.id)).forEach(draw);
  // Plots are drawn when the reader comes near them, so that a phone shows the first ones at once.
  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting || drawn.has(entry.target.id)) continue;
      drawn.add(entry.target.id);
      draw(plots.find((plot) => plot.id === entry.target.id));
    }
  }, { rootMargin: "800px" });
  plots.forEach((plot) => near.observe(document.getElementById(plot.id)));
  dark.addEventListener("change", all);
  addEventListener("beforeprint", () => plots.forEach((plot) => { drawn.add(plot.id); draw(plot); }));
})();
