// The log on the page of a job: the end of what a worker wrote, then what it adds, as long as the page is looked at and not paused.
(() => {
  "use strict";

  const { live } = window.gpufleet;
  const panel = document.querySelector("[data-log]");
  if (!panel) return;
  const text = panel.querySelector("[data-log-text]");
  const note = panel.querySelector("[data-log-note]");
  const writer = panel.querySelector("[data-log-writer]");
  const find = panel.querySelector("[data-log-find]");
  const found = panel.querySelector("[data-log-found]");
  const EVERY_MS = 1000;
  const SELDOM_MS = 5000;
  const TAIL_BYTES = 16384;
  const KEPT = 400000;

  let offset = -TAIL_BYTES;
  let source = null;
  let ended = false;
  let tryAt = 0;
  let whole = "";

  const atEnd = () => text.scrollHeight - text.scrollTop - text.clientHeight < 24;

  function show() {
    const wanted = find.value.trim().toLowerCase();
    if (!wanted) {
      text.replaceChildren(document.createTextNode(whole));
      live.setText(found, "");
      return;
    }
    const lines = whole.split("\n").filter((line) => line.toLowerCase().includes(wanted));
    text.replaceChildren(document.createTextNode(lines.join("\n")));
    live.setText(found, lines.length === 1 ? "1 line" : `${lines.length} lines`);
  }

  function add(more) {
    if (!more) return;
    const follow = atEnd();
    whole += more;
    const cut = whole.length > KEPT;
    if (cut) whole = whole.slice(whole.indexOf("\n", whole.length - KEPT) + 1);
    // Text nodes only: whatever a job writes stays text.
    if (cut || find.value.trim()) show();
    else text.append(document.createTextNode(more));
    if (follow) text.scrollTop = text.scrollHeight;
  }

  function close() {
    if (source) source.close();
    source = null;
  }

  function open() {
    const [role, index] = writer.value.split("|");
    const query = new URLSearchParams({ attempt: panel.dataset.attempt, role, index, offset: String(offset) });
    const mine = new EventSource(`/api/v1/jobs/${panel.dataset.log}/logs/stream?${query}`);
    source = mine;
    mine.addEventListener("message", (event) => {
      if (mine !== source) return;
      const part = JSON.parse(event.data);
      if (part.text) offset = part.next_offset;
      add(part.text);
      live.setText(note, whole ? "" : part.note || "It has written nothing yet.");
    });
    mine.addEventListener("end", () => {
      if (mine !== source) return;
      ended = true;
      close();
      if (!whole && !note.textContent) live.setText(note, "It has written nothing.");
    });
    mine.addEventListener("error", () => {
      // The browser comes back by itself after an answer that is over; from one that was refused it does not.
      if (mine !== source || mine.readyState !== EventSource.CLOSED) return;
      close();
      tryAt = Date.now() + SELDOM_MS;
    });
  }

  function look() {
    if (live.still) close();
    else if (!source && !ended && Date.now() >= tryAt) open();
  }

  writer.addEventListener("change", () => {
    close();
    offset = -TAIL_BYTES;
    ended = false;
    whole = "";
    tryAt = 0;
    show();
    look();
  });
  find.addEventListener("input", show);
  setInterval(look, EVERY_MS);
  look();
})();
