// The bell: how many notices are unread. Live where the page is live, else looked at now and then while the page is seen.
(() => {
  "use strict";

  const bell = document.querySelector("[data-bell]");
  if (!bell) return;
  const badge = bell.querySelector(".bell-count");
  const MOST = 99;
  const SELDOM_MS = 30000;
  let mark = "";

  function show(count) {
    const text = count > MOST ? `${MOST}+` : String(count);
    if (badge.textContent !== text) badge.textContent = text;
    badge.hidden = !count;
    bell.setAttribute("aria-label", count ? `Notifications, ${count > MOST ? `more than ${MOST}` : count} unread` : "Notifications");
  }

  async function look() {
    try {
      const answer = await fetch(bell.dataset.bell, { headers: { Accept: "application/json" }, cache: "no-store" });
      if (!answer.ok) return null;
      const said = await answer.json();
      mark = said.mark;
      show(said.count);
      return said;
    } catch {
      return null; // the network is away; the next look shows it
    }
  }

  addEventListener("load", async () => {
    const said = await look();
    const live = window.gpufleet.live;
    if (live && said) {
      live.follow("bells", {
        version: said.version,
        snapshot: "/live/bells/snapshot",
        apply: (rows) => rows.some((row) => row[0] === mark) && look(),
        replace: (snapshot) => show(snapshot.count),
      });
      return;
    }
    setInterval(() => document.hidden || look(), SELDOM_MS);
    document.addEventListener("visibilitychange", () => document.hidden || look());
  });
})();
