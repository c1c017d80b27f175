// The overview's chart: what is handed out against what computes. Plotly comes after the figures, and only here; without it the table says the same.
(() => {
  "use strict";

  const { live } = window.gpufleet;
  const { format, setText } = live;
  const REFRESH_MS = 60000;
  const TWIN_ROWS = 24;

  const place = document.querySelector("[data-chart]");
  const form = document.querySelector("[data-history-form]");
  const twin = document.querySelector("[data-twin]");
  let series = JSON.parse(document.getElementById("overview-data").textContent).history;
  let frame = 0;

  // Plotly writes style attributes, which the page's policy forbids. The same text set through the style object is allowed.
  const setAttribute = Element.prototype.setAttribute;
  Element.prototype.setAttribute = function (name, value) {
    if (name === "style") this.style.cssText = value;
    else setAttribute.call(this, name, value);
  };
  // It also brings a style sheet for maps, which we don't draw.
  document.head.appendChild = (node) => (node instanceof HTMLStyleElement ? node : Node.prototype.appendChild.call(document.head, node));

  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();

  function faded(name, opacity) {
    const [red, green, blue] = colour(name).match(/[\d.]+/g);
    return `rgba(${red}, ${green}, ${blue}, ${opacity})`;
  }

  // Plotly draws dates as it is told them, so local time is told as if it were UTC.
  function shownTimes() {
    const utc = document.documentElement.dataset.clock === "utc";
    return series.at.map((at) => new Date(utc ? at : at - new Date(at).getTimezoneOffset() * 60000).toISOString().slice(0, 19));
  }

  // Runs of steps in which GPUs were recorded but none could be read.
  function darkRuns() {
    const runs = [];
    series.at.forEach((_, number) => {
      if (series.active[number] !== null || series.allocated[number] === null) return;
      const last = runs[runs.length - 1];
      if (last && last[1] === number - 1) last[1] = number;
      else runs.push([number, number]);
    });
    return runs;
  }

  // Runs of steps in which both lines are known: between them the ground says nothing.
  function knownRuns() {
    const runs = [];
    series.at.forEach((_, number) => {
      if (series.active[number] === null || series.allocated[number] === null) return;
      const last = runs[runs.length - 1];
      if (last && last[1] === number - 1) last[1] = number;
      else runs.push([number, number]);
    });
    return runs;
  }

  function traces() {
    const x = shownTimes();
    const line = (name, column, key, more = {}) => ({
      type: "scatter", mode: "lines", name, x, y: column, line: { color: colour(key), width: 2, ...more }, hovertemplate: "%{y:,.0f}",
    });
    const grounds = knownRuns().flatMap(([first, last]) => {
      const cut = (column) => column.slice(first, last + 1);
      const held = cut(series.allocated);
      const ground = (y, fill, fillcolor) => ({ type: "scatter", mode: "lines", x: cut(x), y, line: { width: 0 }, fill, fillcolor, hoverinfo: "skip" });
      return [
        ground(cut(series.active).map((value, number) => Math.min(value, held[number])), "tozeroy", faded("used", 0.14)),
        ground(held, "tonexty", faded("held", 0.22)),
      ];
    });
    return [
      ...grounds,
      line("In the fleet", series.capacity, "ink-soft", { width: 1, dash: "dot" }),
      line("Handed out", series.allocated, "held"),
      line("Computing", series.active, "used"),
    ];
  }

  function layout() {
    const times = shownTimes();
    const half = (series.step_seconds * 1000) / 2;
    const most = Math.max(1, ...series.capacity.filter((value) => value !== null));
    const shifted = (number, by) => new Date(Date.parse(`${times[number]}Z`) + by).toISOString().slice(0, 19);
    const axis = { color: colour("ink-soft"), gridcolor: colour("line"), linecolor: colour("line"), zeroline: false, fixedrange: true };
    return {
      width: place.clientWidth,
      height: place.clientHeight,
      margin: { l: 44, r: 8, t: 8, b: 28 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colour("ink-soft") },
      showlegend: false,
      dragmode: false,
      hovermode: "x unified",
      hoverlabel: { bgcolor: colour("surface"), bordercolor: colour("edge"), font: { color: colour("ink") } },
      uirevision: "kept",
      xaxis: { ...axis, type: "date", range: [times[0], times[times.length - 1]], showgrid: false, nticks: place.clientWidth < 480 ? 4 : 8, tickformat: "%H:%M", hoverformat: "%a %d %b, %H:%M" },
      yaxis: { ...axis, range: [0, most * 1.06], nticks: 5, tickformat: ",d" },
      shapes: darkRuns().map(([first, last]) => ({
        type: "rect", xref: "x", yref: "paper", x0: shifted(first, -half), x1: shifted(last, half), y0: 0, y1: 1,
        line: { width: 0 }, fillcolor: faded("hatch", 0.25), layer: "below",
      })),
    };
  }

  const isEmpty = () => series.allocated.every((value) => value === null);

  function draw() {
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(() => {
      const note = place.querySelector("[data-chart-note]");
      document.querySelector('.chart-legend [data-if="dark"]').hidden = darkRuns().length === 0;
      if (isEmpty()) {
        if (place.querySelector(".plot-container")) window.Plotly.purge(place);
        if (note) setText(note, "Nothing was recorded in this time. The line starts with the first minute of telemetry.");
        else place.replaceChildren(Object.assign(document.createElement("p"), { className: "chart-note", textContent: "Nothing was recorded in this time." }));
        return;
      }
      if (note) note.remove();
      window.Plotly.react(place, traces(), layout(), { displayModeBar: false, responsive: false, doubleClick: false });
    });
  }

  function fillTwin() {
    const stride = Math.max(1, Math.ceil(series.at.length / TWIN_ROWS));
    const rows = [];
    const mean = (column, begin) => {
      const known = column.slice(begin, begin + stride).filter((value) => value !== null);
      return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
    };
    const text = (value) => (value === null ? format.NOTHING : format.grouped(Math.round(value)));
    for (let begin = 0; begin < series.at.length; begin += stride) {
      const [capacity, held, active] = [series.capacity, series.allocated, series.active].map((column) => mean(column, begin));
      const gap = held === null || active === null ? null : Math.max(0, held - active);
      const row = document.createElement("tr");
      const head = Object.assign(document.createElement("th"), { scope: "row" });
      live.setMoment(head, series.at[begin], "absolute");
      row.append(head, ...[capacity, held, active, gap].map((value) => Object.assign(document.createElement("td"), { className: "num", textContent: text(value) })));
      rows.unshift(row);
    }
    twin.replaceChildren(...rows);
  }

  let asked = 0;
  async function refresh() {
    const mine = ++asked;
    const query = new URLSearchParams(new FormData(form));
    try {
      const answer = await fetch(`${place.dataset.history}?${query}`, { headers: { Accept: "application/json" } });
      if (!answer.ok || mine !== asked || live.paused) return;
      series = await answer.json();
    } catch {
      return; // The banner says that the console can't be reached; the chart keeps what it has.
    }
    place.setAttribute("aria-label", `GPUs handed out and GPUs' worth of SM activity over the last ${query.get("hours")} hours. The table below has the same numbers.`);
    fillTwin();
    if (window.Plotly) draw();
  }

  form.addEventListener("change", () => {
    history.replaceState(null, "", `?${new URLSearchParams(new FormData(form))}`);
    refresh();
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    refresh();
  });
  setInterval(() => live.still || setTimeout(refresh, Math.random() * 5000), REFRESH_MS);

  function start() {
    const script = document.createElement("script");
    script.src = place.dataset.plotly;
    script.onload = () => {
      draw();
      new ResizeObserver(() => window.Plotly && draw()).observe(place);
      new MutationObserver(draw).observe(document.documentElement, { attributeFilter: ["data-theme", "data-clock"] });
      matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
    };
    script.onerror = () => setText(place.querySelector("[data-chart-note]"), "The chart could not be loaded. The table below has its numbers.");
    document.head.append(script);
  }

  // The figures first: the chart's 1.5 MB wait until the page stands and the browser has nothing better to do.
  const whenIdle = window.requestIdleCallback || ((call) => setTimeout(call, 200));
  if (isEmpty()) draw();
  else if (document.readyState === "complete") whenIdle(start);
  else addEventListener("load", () => whenIdle(start), { once: true });
})();
