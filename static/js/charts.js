// Draws every chart of a page (templates/_chart.html): figures come from the server, colours from the page's tokens, plotly.js when a chart comes into view.
(() => {
  "use strict";

  const root = document.documentElement;
  const VARIABLE = /^var\((--[\w-]+)(?:, (\d+)%)?\)$/;
  const probe = document.createElement("i");
  const drawn = new Set();
  let library = null;

  // Plotly writes style attributes, which the page's policy forbids. The same text set through the style object is allowed.
  const setAttribute = Element.prototype.setAttribute;
  Element.prototype.setAttribute = function (name, value) {
    if (name === "style") this.style.cssText = value;
    else setAttribute.call(this, name, value);
  };

  function colour(name) {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
  }

  // The figure with the theme's colours, and moments in the reader's clock: plotly draws dates as if all of them were UTC.
  function resolved(value) {
    if (typeof value === "string") {
      const variable = VARIABLE.exec(value);
      if (!variable) return value;
      const whole = colour(variable[1]);
      return variable[2] ? whole.replace(/^rgb\((.*)\)$/, `rgba($1, ${variable[2] / 100})`) : whole;
    }
    if (Array.isArray(value)) return value.map(resolved);
    if (value && typeof value === "object" && !ArrayBuffer.isView(value)) return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, resolved(inner)]));
    return value;
  }

  function local(text) {
    if (root.dataset.clock === "utc") return text;
    const at = new Date(`${text}Z`);
    return new Date(at - at.getTimezoneOffset() * 60000).toISOString().slice(0, 19);
  }

  function inLocalTime(figure) {
    if (figure.layout.xaxis?.type !== "date") return;
    for (const trace of figure.data) trace.x = trace.x.map(local);
    if (figure.layout.xaxis.range) figure.layout.xaxis.range = figure.layout.xaxis.range.map(local);
    for (const shape of figure.layout.shapes || []) if (shape.xref === "x") Object.assign(shape, { x0: local(shape.x0), x1: local(shape.x1) });
  }

  function layoutOf(canvas, layout) {
    const soft = colour("--ink-soft");
    const line = colour("--line");
    const wide = layout.yaxis?.type === "category";
    const axis = { color: soft, gridcolor: line, linecolor: line, zeroline: false, fixedrange: true, automargin: true };
    return {
      ...layout,
      width: canvas.clientWidth,
      height: canvas.clientHeight,
      margin: { l: wide ? 8 : 44, r: 12, t: 8, b: layout.xaxis?.type === "date" ? 40 : 28 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: soft },
      showlegend: false,
      dragmode: false,
      hovermode: wide ? "closest" : "x unified",
      hoverlabel: { bgcolor: colour("--surface"), bordercolor: colour("--edge"), font: { color: colour("--ink") } },
      bargap: 0.35,
      uirevision: "kept",
      xaxis: { ...axis, showgrid: layout.xaxis?.type !== "date", nticks: canvas.clientWidth < 480 ? 4 : 8, hoverformat: "%a %d %b %Y, %H:%M", ...layout.xaxis },
      yaxis: { ...axis, nticks: 5, separatethousands: true, ...layout.yaxis },
    };
  }

  class Plot {
    constructor(element) {
      this.element = element;
      this.canvas = element.querySelector("[data-plot-canvas]");
      this.document = JSON.parse(element.querySelector("[data-plot-document]").textContent);
      this.frame = 0;
      this.asked = 0;
      element.querySelector("[data-plot-png]")?.addEventListener("click", () => this.download());
    }

    note(text) {
      if (this.canvas.querySelector(".plot-container")) window.Plotly.purge(this.canvas);
      const note = Object.assign(document.createElement("p"), { className: "plot-note", textContent: text });
      this.canvas.replaceChildren(note);
    }

    draw() {
      cancelAnimationFrame(this.frame);
      this.frame = requestAnimationFrame(() => {
        this.size = this.room();
        if (this.document.empty) return this.note("No data in this range.");
        if (!this.canvas.clientWidth) return undefined; // Folded away: it is drawn when it comes into view.
        this.canvas.querySelector(".plot-note")?.remove();
        const figure = resolved(this.document.figure);
        inLocalTime(figure);
        window.Plotly.react(this.canvas, figure.data, layoutOf(this.canvas, figure.layout), { displayModeBar: false, responsive: false, doubleClick: false });
        if (!drawn.has(this)) this.follow();
        return undefined;
      });
    }

    room() {
      return `${this.canvas.clientWidth} ${this.canvas.clientHeight}`;
    }

    isLines() {
      const { xaxis, yaxis } = this.document.figure.layout;
      return xaxis?.type === "date" && yaxis?.type !== "category";
    }

    // The charts of a page that share a time axis show the same moment.
    follow() {
      drawn.add(this);
      const others = () => [...drawn].filter((plot) => plot !== this && plot.canvas.querySelector(".plot-container"));
      this.canvas.on("plotly_hover", (event) => {
        if (!event.event || !this.isLines()) return;
        for (const plot of others()) if (plot.isLines()) window.Plotly.Fx.hover(plot.canvas, { xval: event.xvals[0] }, "xy");
      });
      this.canvas.on("plotly_unhover", () => others().forEach((plot) => window.Plotly.Fx.unhover(plot.canvas)));
      // It also tells of the size at which the chart has just been drawn.
      new ResizeObserver(() => this.room() !== this.size && this.draw()).observe(this.canvas);
    }

    async refresh(query) {
      const mine = ++this.asked;
      const address = new URL(this.element.dataset.source, location.href);
      for (const [name, value] of query) address.searchParams.set(name, value);
      let answer;
      try {
        const response = await fetch(address, { headers: { Accept: "application/json" } });
        if (!response.ok) return;
        answer = await response.json();
      } catch {
        return; // The banner says that the console is away; the chart keeps what it has.
      }
      if (mine !== this.asked) return;
      this.document = answer;
      this.canvas.setAttribute("aria-label", answer.label);
      this.element.querySelector("[data-plot-table]").innerHTML = answer.table;
      this.element.querySelector("[data-plot-legend]").innerHTML = answer.legend;
      const csv = this.element.querySelector("[data-plot-csv]");
      if (csv) csv.href = `${address.pathname}?${new URLSearchParams([...address.searchParams, ["format", "csv"]])}`;
      if (window.Plotly) this.draw();
      else if (!answer.empty) load(this);
    }

    async download() {
      if (!this.canvas.querySelector(".plot-container")) return;
      const { clientWidth: width, clientHeight: height } = this.canvas;
      // Plotly makes its own PNG from an address that the policy forbids; the same picture as SVG in a data address is allowed.
      const picture = Object.assign(new Image(), { src: await window.Plotly.toImage(this.canvas, { format: "svg", width, height }) });
      await picture.decode();
      const sheet = Object.assign(document.createElement("canvas"), { width: width * 2, height: height * 2 });
      const pen = sheet.getContext("2d");
      pen.fillStyle = colour("--surface");
      pen.fillRect(0, 0, sheet.width, sheet.height);
      pen.drawImage(picture, 0, 0, sheet.width, sheet.height);
      this.save(sheet.toDataURL("image/png"));
    }

    save(href) {
      const name = this.document.label.replace(/[^\w]+/g, "-").slice(0, 60).toLowerCase() || "chart";
      Object.assign(document.createElement("a"), { href, download: `${name}.png` }).click();
    }
  }

  const plots = [...document.querySelectorAll("[data-plot]")].map((element) => new Plot(element));
  probe.hidden = true;
  document.body.append(probe);

  function load(plot) {
    library ||= new Promise((resolve, reject) => {
      const script = Object.assign(document.createElement("script"), { src: plot.element.dataset.plotly, onload: resolve, onerror: reject });
      document.head.append(script);
    });
    library.then(() => plot.draw(), () => plot.note("The chart could not be loaded. The table has its numbers."));
  }

  // The page's figures first: a chart waits until the page stands and the chart is in view.
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      seen.unobserve(entry.target);
      const plot = plots.find((one) => one.element === entry.target);
      if (plot.document.empty) plot.draw();
      else load(plot);
    }
  }, { rootMargin: "200px" });
  // A browser that draws no frame meanwhile may call itself busy for a minute.
  const whenIdle = window.requestIdleCallback ? (call) => requestIdleCallback(call, { timeout: 200 }) : (call) => setTimeout(call, 200);
  // A chart may come later: with the part of a page that says what was worked out.
  function adopt() {
    for (const element of document.querySelectorAll("[data-plot]")) {
      if (plots.some((plot) => plot.element === element)) continue;
      plots.push(new Plot(element));
      seen.observe(element);
    }
  }
  const watch = () => whenIdle(() => plots.forEach((plot) => seen.observe(plot.element)));
  document.addEventListener("gpufleet:parts", adopt);
  if (document.readyState === "complete") watch();
  else addEventListener("load", watch, { once: true });

  const redraw = () => plots.forEach((plot) => window.Plotly && plot.draw());
  new MutationObserver(redraw).observe(root, { attributeFilter: ["data-theme", "data-clock"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

  const REFRESH_MS = 60000;
  const form = document.querySelector("[data-plot-ranges]");
  const query = () => (form ? new URLSearchParams(new FormData(form)) : new URLSearchParams());
  const refresh = () => plots.forEach((plot) => plot.element.dataset.source && plot.refresh(query()));
  form?.addEventListener("change", () => {
    const address = new URL(location.href);
    for (const [name, value] of query()) address.searchParams.set(name, value);
    history.replaceState(history.state, "", address);
    refresh();
  });
  setInterval(() => document.hidden || window.gpufleet?.live?.still || refresh(), REFRESH_MS);
})();
