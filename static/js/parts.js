// Pages whose parts are kept up to date by the page itself: when the topic says that something changed, the page is asked for again and what differs is
// put in its place. Under the pointer or the focus nothing moves: what would move waits behind a button, “2 changes – apply”.
//
//   <script src="parts.js" defer data-topic="jobs" data-version="41" data-only="j-17" data-list="table-jobs"></script>
//
// `data-only` names the one row that the page is about; without it every change of the topic counts. `data-list` is the id of a list's region: its rows are
// matched by `data-key`, texts change where they stand, rows that come, go or move wait. Everything else is a `data-part`; one with `data-part-quiet`
// never moves anything and is changed at once.
(() => {
  "use strict";

  const { live, shell } = window.gpufleet;
  const script = document.currentScript;
  const { topic, only, list: listId } = script.dataset;
  // Rows that are shown are asked for alone, which costs little. The whole page is asked for a few times at once, and then once a second.
  const GAP_MS = 150;
  const WHOLE = { most: 4, everyMs: 1000, laterMs: 3000, rows: 50 };
  const button = document.querySelector("[data-apply]");

  let timer = 0;
  let asking = false;
  let askedAt = 0;
  let wanted = new Set();
  let wholeAt = Infinity;
  let credit = WHOLE.most;
  let creditAt = Date.now();
  let waiting = new Map();

  const held = (node) => node.matches(":hover") || node.contains(document.activeElement);

  // What a part says, without the words of times, which grow old by themselves, and without tokens that differ in every answer.
  function meaning(node) {
    const copy = node.cloneNode(true);
    for (const time of copy.querySelectorAll("time")) time.textContent = "";
    for (const hidden of copy.querySelectorAll("input[name=csrfmiddlewaretoken]")) hidden.remove();
    return copy.innerHTML;
  }

  function put(node, fresh) {
    if (node.hidden !== fresh.hidden) node.hidden = fresh.hidden;
    if (meaning(node) === meaning(fresh)) return;
    node.replaceChildren(...[...fresh.childNodes].map((child) => document.importNode(child, true)));
    for (const time of node.querySelectorAll("time[data-moment]")) shell.paintTime(time);
  }

  // ---- Rows ----

  const rowTemplate = document.createElement("template");
  rowTemplate.innerHTML = "<tr></tr>";
  let rows = null;
  const rowOf = (key) => document.querySelector(`[data-key="${CSS.escape(key)}"]`);

  function fillRow(row, item) {
    const cells = [...item.row.children];
    if (row.children.length !== cells.length) {
      row.replaceChildren(...cells.map((cell) => document.importNode(cell, true)));
      for (const time of row.querySelectorAll("time[data-moment]")) shell.paintTime(time);
      return;
    }
    cells.forEach((cell, number) => {
      // A link that has the focus stays the very element that it is.
      if (!row.children[number].contains(document.activeElement)) put(row.children[number], cell);
    });
  }

  function updateRows(fresh) {
    const mine = document.getElementById(listId);
    const theirs = fresh.getElementById(listId);
    if (!mine || !theirs) return;
    const body = mine.querySelector("tbody");
    const freshBody = theirs.querySelector("tbody");
    if (!body || !freshBody) {
      // From nothing to something, or back: nobody points at rows that are not there.
      if (Boolean(body) !== Boolean(freshBody) && !held(mine)) mine.replaceWith(document.importNode(theirs, true));
      return;
    }
    if (!rows || rows.body !== body) rows = { body, update: live.list(body, { template: rowTemplate, fill: fillRow, button, key: (item) => item.key }) };
    rows.update([...freshBody.children].map((row) => ({ key: row.dataset.key, row })));
    const pager = mine.querySelector(".pager");
    const freshPager = theirs.querySelector(".pager");
    if (pager && freshPager && !held(pager)) put(pager, freshPager);
  }

  function updateSome(fresh, asked) {
    const found = fresh.querySelectorAll("tr[data-key]");
    for (const row of found) {
      const mine = rowOf(row.dataset.key);
      if (mine) fillRow(mine, { row });
    }
    // A row that the list's filters let through no longer.
    if (found.length < asked) askWhole(soon());
  }

  // ---- Parts ----

  function show() {
    if (!button || listId) return;
    button.hidden = waiting.size === 0;
    live.setText(button, `${waiting.size} ${waiting.size === 1 ? "change" : "changes"} – apply`);
  }

  function applyWaiting() {
    for (const [name, fresh] of waiting) {
      const node = document.querySelector(`[data-part="${CSS.escape(name)}"]`);
      if (node) put(node, fresh);
    }
    waiting = new Map();
    show();
  }

  function updateParts(fresh) {
    for (const node of document.querySelectorAll("[data-part]")) {
      const other = fresh.querySelector(`[data-part="${CSS.escape(node.dataset.part)}"]`);
      if (!other) continue;
      const quiet = "partQuiet" in node.dataset;
      if (held(node) && (!quiet || node.contains(document.activeElement))) {
        if (node.hidden !== other.hidden || meaning(node) !== meaning(other)) waiting.set(node.dataset.part, other);
        else waiting.delete(node.dataset.part);
      } else {
        put(node, other);
        waiting.delete(node.dataset.part);
      }
    }
    show();
  }

  if (button && !listId) {
    button.addEventListener("click", applyWaiting);
    document.addEventListener("pointerout", () => setTimeout(() => {
      if (live.still) return;
      for (const [name, fresh] of [...waiting]) {
        const node = document.querySelector(`[data-part="${CSS.escape(name)}"]`);
        if (node && !held(node)) {
          put(node, fresh);
          waiting.delete(name);
        }
      }
      show();
    }));
  }

  // ---- When ----

  async function ask() {
    if (asking || live.still) return;
    const whole = wholeAt <= Date.now();
    if (!whole && !wanted.size) return again();
    const address = new URL(location.href);
    if (whole) {
      credit -= 1;
      wholeAt = Infinity;
    } else address.searchParams.set("rows", [...wanted].join(","));
    const asked = wanted.size;
    wanted = new Set();
    asking = true;
    askedAt = Date.now();
    try {
      const answer = await fetch(address, { headers: { Accept: "text/html" }, cache: "no-store" });
      if (answer.ok && !answer.redirected) {
        const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
        if (!live.still) {
          if (!whole) updateSome(fresh, asked);
          else {
            updateParts(fresh);
            if (listId) updateRows(fresh);
          }
        }
      }
    } catch {
      // The network is away; live.js says so, and the next change asks again.
    }
    asking = false;
    again();
  }

  function again() {
    clearTimeout(timer);
    if (asking) return;
    const at = Math.max(askedAt + GAP_MS, wanted.size ? 0 : wholeAt);
    if (at < Infinity) timer = setTimeout(ask, Math.max(0, at - Date.now()));
  }

  function askWhole(at) {
    wholeAt = Math.min(wholeAt, at);
    again();
  }

  function soon() {
    const moment = Date.now();
    credit = Math.min(WHOLE.most, credit + (moment - creditAt) / WHOLE.everyMs);
    creditAt = moment;
    return credit >= 1 ? moment : moment + (1 - credit) * WHOLE.everyMs;
  }

  function changed(keys) {
    if (only && !keys.includes(only)) return;
    const shown = listId ? keys.filter(rowOf) : [];
    for (const key of shown) wanted.add(key);
    const isEnough = shown.length && shown.length === keys.length && wanted.size <= WHOLE.rows;
    // Other parts of the page, and the order of rows, may follow a little later.
    askWhole(isEnough ? Date.now() + WHOLE.laterMs : soon());
  }

  live.follow(topic, {
    version: Number(script.dataset.version),
    snapshot: `/live/${topic}/snapshot`,
    apply: (changes) => changed(changes.map(([key]) => key)),
    replace: () => askWhole(0),
  });
})();
