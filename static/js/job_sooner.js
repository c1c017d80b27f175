// What would start a waiting job sooner: trying changes takes a moment, so it comes after the page, and anew once a minute while somebody looks.
(() => {
  "use strict";

  const { shell, live } = window.gpufleet;
  const panel = document.querySelector("[data-sooner]");
  if (!panel) return;
  const body = panel.querySelector("[data-sooner-body]");
  const why = document.querySelector('[data-part="why"]');
  const EVERY_MS = 60000;
  const LATER_MS = 5000;
  let timer = 0;
  let over = why.hidden;

  const soon = (ms) => {
    clearTimeout(timer);
    if (!over) timer = setTimeout(look, ms);
  };
  // Nothing changes under the pointer or the focus.
  const held = () => body.querySelector("a") && (body.matches(":hover") || body.contains(document.activeElement));

  function show(html) {
    const holder = document.createElement("template");
    holder.innerHTML = html;
    const again = holder.content.querySelector("[data-again]");
    if (again && body.querySelector(".betters")) return Number(again.dataset.again);
    over = Boolean(holder.content.querySelector("[data-over]"));
    panel.hidden = over;
    body.replaceChildren(holder.content);
    body.querySelectorAll("time[data-moment]").forEach(shell.paintTime);
    return again ? Number(again.dataset.again) : EVERY_MS;
  }

  async function look() {
    if (document.hidden || live.still || held()) return soon(LATER_MS);
    body.setAttribute("aria-busy", "true");
    let next = EVERY_MS;
    try {
      const answer = await fetch(`${panel.dataset.sooner}?part`, { headers: { Accept: "text/html" }, cache: "no-store" });
      if (answer.ok && !answer.redirected) next = held() ? LATER_MS : show(await answer.text());
      else over = answer.status < 500 && answer.status !== 429;
    } catch {
      // The network is away; live.js says so.
    }
    body.removeAttribute("aria-busy");
    return soon(next);
  }

  // Once it has started, or begins to wait again, the part above it comes and goes.
  new MutationObserver(() => {
    panel.hidden = why.hidden;
    over = why.hidden;
    soon(over ? EVERY_MS : 0);
  }).observe(why, { attributes: true, attributeFilter: ["hidden"] });

  if (!over) look();
})();
