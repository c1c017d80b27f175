// Runs before the page is drawn, so that a chosen theme never flashes the other one. Everything else waits in shell.js.
(() => {
  const root = document.documentElement;
  root.dataset.scripts = "on";
  let kept = null;
  let density = null;
  try {
    kept = localStorage.getItem("gpufleet.theme");
    density = localStorage.getItem("gpufleet.density");
  } catch {
    // A browser that keeps nothing follows the system's theme.
  }
  if (kept === "light" || kept === "dark") root.dataset.theme = kept;
  if (density === "airy") root.dataset.density = density;
})();
