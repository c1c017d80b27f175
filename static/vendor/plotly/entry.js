// The parts of plotly.js that the console draws with: lines, areas, bars and heat maps. Its style sheet stays out: css/charts.css has the few rules.
"use strict";

const Registry = require("plotly.js/src/registry");
const api = require("plotly.js/src/plot_api");
const Fx = require("plotly.js/src/components/fx");

exports.version = require("plotly.js/src/version").version;
for (const [name, method] of Object.entries(api)) {
  if (!name.startsWith("_")) exports[name] = method;
  Registry.register({ moduleType: "apiMethod", name, fn: method });
}
exports.Fx = { hover: Fx.hover, unhover: Fx.unhover };
Registry.register([
  require("plotly.js/src/traces/scatter"),
  require("plotly.js/src/traces/bar"),
  require("plotly.js/src/traces/heatmap"),
  require("plotly.js/src/components/shapes"),
  require("plotly.js/src/components/colorscale"),
  require("plotly.js/src/components/colorbar"),
  require("plotly.js/src/components/legend"),
  Fx,
  // Its bar of buttons is never shown, but plotly.js reads its settings.
  require("plotly.js/src/components/modebar"),
  require("plotly.js/src/locale-en"),
  require("plotly.js/src/locale-en-us"),
]);
