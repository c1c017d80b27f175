// The log on the page of a job: the end of what a worker wrote, then what it adds, as long as the page is looked at and not paused.
(() => {
  "use strict";

  const { live } = window.gpufleet;
  const panel = document.querySelector("[data-log]");
  if (!panel) return;
  const text = panel.querySelector("[data-log-text]");
  const note = panel.querySelector("[data-log-note]");
  const writer = panel.querySelector("[data-log-writer]");
  const EVERY_MS = 1000;
  const SELDOM_MS = 5000;
  const TAIL_BYTES = 16384;
  const KEPT = 400000;

  let offset = -TAIL_BYTES;
  let timer = 0;
  let turn = 0;

  const atEnd = () => text.scrollHeight - text.scrollTop - text.clientHeight < 24;

  function add(more) {
    if (!more) return;
    const follow = atEnd();
    // Text nodes only: whatever a job writes stays text.
    text.append(document.createTextNode(more));
    while (text.textContent.length > KEPT && text.firstChild !== text.lastChild) text.firstChild.remove();
    if (follow) text.scrollTop = text.scrollHeight;
  }

  function again(milliseconds) {
    clearTimeout(timer);
    timer = setTimeout(ask, milliseconds);
  }

  async function ask() {
    if (live.still) return again(EVERY_MS);
    const mine = turn;
    const [role, index] = writer.value.split("|");
    const query = new URLSearchParams({ attempt: panel.dataset.attempt, role, index, offset: String(offset) });
    let part = null;
    try {
      const answer = await fetch(`/api/v1/jobs/${panel.dataset.log}/logs?${query}`, { headers: { Accept: "application/json" }, cache: "no-store" });
      if (answer.ok) part = await answer.json();
    } catch {
      // The network is away: asked again below.
    }
    if (mine !== turn) return;
    if (!part) return again(SELDOM_MS);
    if (live.still) return again(EVERY_MS);
    add(part.text);
    offset = part.text || offset >= 0 ? part.next_offset : offset;
    live.setText(note, text.textContent ? "" : part.note || "It has written nothing yet.");
    if (!part.ended) again(part.text ? EVERY_MS : Math.min(SELDOM_MS, 2 * EVERY_MS));
  }

  writer.addEventListener("change", () => {
    turn += 1;
    offset = -TAIL_BYTES;
    text.replaceChildren();
    ask();
  });
  ask();
})();
