// Makes plotly.min.js from the published package: `make charts` installs plotly.js and esbuild into build/charts and runs this there.
import { readFileSync, writeFileSync } from "node:fs";
import { build } from "esbuild";

const [entry, outfile] = process.argv.slice(2);
const { version } = JSON.parse(readFileSync("node_modules/plotly.js/package.json", "utf8"));
await build({
  entryPoints: [entry],
  outfile,
  bundle: true,
  minify: true,
  format: "iife",
  globalName: "Plotly",
  target: "es2020",
  define: { global: "window", "define.amd": "false" },
  alias: { regl: "@plotly/regl", stream: "stream-browserify" },
  nodePaths: ["node_modules"],
});
const note = `/* plotly.js ${version}, scatter, bar and heatmap alone. Copyright Plotly, Inc. MIT licence: see LICENSE beside this file. */\n`;
writeFileSync(outfile, note + readFileSync(outfile, "utf8"));
