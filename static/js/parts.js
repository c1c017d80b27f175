// Pages whose parts are kept up to date by the page itself: when the topic says that something changed, the page is asked for again and what differs is
// put in its place. Under the pointer or the focus nothing moves: what would move waits behind a button, “2 changes – apply”.
//
//   <script src="parts.js" defer data-topic="jobs" data-version="41" data-only="j-17" data-list="table-jobs"></script>
//
// `data-only` names the one row that the page is about; without it every change of the topic counts. Every change of the topic `data-also` is one of the
// page as a whole. `data-from` is an address that answers with the parts alone. `data-list` is the id of a list's region: its rows are
// matched by `data-key`, texts change where they stand, rows that come, go or move wait. Everything else is a `data-part`; one with `data-part-quiet`
// never moves anything and is changed at once.
//
// A list with `data-named-rows` is asked for its order and the rows that changed (`?rows=`), which costs little; all of it follows a little later, for
// its other parts. The two do not wait for each other, and answers may overtake each other: what is older than what stands there is left alone.
//
// A page with `data-again="2000"` somewhere is asked for again after so many milliseconds: it shows what is still being worked out, or measured.
(() => {
  "use strict";

  const { live, shell } = window.gpufleet;
  const script = document.currentScript;
  const { topic, only, also, from, list: listId } = script.dataset;
  const GAP_MS = 150;
  // Of rows that are not shown only the last are asked for by name: ids grow, so a new row is among them. The order that comes with them tells the rest.
  const ROWS = { most: 50, strangers: 40, open: 3 };
  const LATER_MS = 3000;
  const button = document.querySelector('[data-apply=""]');

  // So many at once, and then one each so often.
  function allowance(most, everyMs) {
    let credit = most;
    let at = Date.now();
    return {
      next() {
        const moment = Date.now();
        credit = Math.min(most, credit + (moment - at) / everyMs);
        at = moment;
        return credit >= 1 ? moment : moment + (1 - credit) * everyMs;
      },
      take() {
        credit -= 1;
      },
    };
  }

  const whole = { at: Infinity, askedAt: 0, timer: 0, open: 0, allowed: allowance(4, 1000) };
  const some = { at: Infinity, askedAt: 0, timer: 0, open: 0, allowed: allowance(8, 250), keys: new Set(), strangers: new Set() };
  let waiting = new Map();

  const held = live.isAt;
  // Another number of rows moves what stands below, and somebody may be there.
  const moves = (node, fresh) => node.hidden !== fresh.hidden || node.querySelectorAll("tr, li").length !== fresh.querySelectorAll("tr, li").length;

  // What a part says, without the words of times, which grow old by themselves, without tokens that differ in every answer, and without the marks of
  // tables that shell.js fits to their place, and whatever a person has unfolded in it.
  function meaning(node) {
    const copy = node.cloneNode(true);
    for (const time of copy.querySelectorAll("time")) time.textContent = "";
    for (const hidden of copy.querySelectorAll("input[name=csrfmiddlewaretoken]")) hidden.remove();
    for (const fold of copy.querySelectorAll("details")) fold.removeAttribute("open");
    for (const wrap of copy.querySelectorAll(".table-wrap")) {
      wrap.classList.remove("fits", "more-aside");
      for (const mark of ["tabindex", "data-watched"]) wrap.removeAttribute(mark);
    }
    return copy.innerHTML;
  }

  function put(node, fresh) {
    if (node.hidden !== fresh.hidden) node.hidden = fresh.hidden;
    if (meaning(node) === meaning(fresh)) return;
    const folds = [...node.querySelectorAll("details")].map((fold) => fold.open);
    node.replaceChildren(...[...fresh.childNodes].map((child) => document.importNode(child, true)));
    const anew = node.querySelectorAll("details");
    if (anew.length === folds.length) anew.forEach((fold, number) => { fold.open = folds[number]; });
    for (const time of node.querySelectorAll("time[data-moment]")) shell.paintTime(time);
    shell.watchTables(node);
    document.dispatchEvent(new CustomEvent("gpufleet:parts"));
  }

  // ---- Rows ----

  const rowTemplate = document.createElement("template");
  rowTemplate.innerHTML = "<tr></tr>";
  const versions = new WeakMap();
  let rows = null;
  let arranged = { version: 0, items: new Map() };

  const bodyOf = (page) => page.getElementById(listId)?.querySelector("tbody");
  const rowsOf = (body) => new Map([...body.children].map((row) => [row.dataset.key, row]));

  // An item without cells stays as it stands, and so does one that an older answer tells of.
  function fillRow(row, { cells, version, like }) {
    if (!cells || version < (versions.get(row) || 0)) return;
    versions.set(row, version);
    if (like && !row.children.length) dress(row, like);
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

  function dress(row, like) {
    if (like.hasAttribute("role")) row.setAttribute("role", like.getAttribute("role"));
    row.classList.add(...like.classList);
  }

  function fillShown(shown, items) {
    for (const item of items) if (shown.has(item.key)) fillRow(shown.get(item.key), item);
  }

  function arrange(body, items, version) {
    if (version < arranged.version) {
      fillShown(rowsOf(body), items);
      return;
    }
    arranged = { version, items: new Map(items.map((item) => [item.key, item])) };
    if (!rows || rows.body !== body) rows = { body, update: live.list(body, { template: rowTemplate, fill: fillRow, button, key: (item) => item.key }) };
    rows.update(items);
  }

  function updateRows(fresh, version) {
    const mine = document.getElementById(listId);
    const theirs = fresh.getElementById(listId);
    if (!mine || !theirs) return;
    const body = bodyOf(document);
    const freshBody = bodyOf(fresh);
    if (!body || !freshBody) {
      // From nothing to something, or back: nobody points at rows that are not there.
      if (Boolean(body) !== Boolean(freshBody) && version >= arranged.version && !held(mine)) mine.replaceWith(document.importNode(theirs, true));
      return;
    }
    arrange(body, [...freshBody.children].map((row) => ({ key: row.dataset.key, cells: [...row.children], version, like: row })), version);
    const pager = mine.querySelector(".pager");
    const freshPager = theirs.querySelector(".pager");
    if (pager && freshPager && !held(pager)) put(pager, freshPager);
  }

  function updateSome(fresh, version) {
    const body = bodyOf(document);
    const keys = fresh.querySelector("[data-order]").dataset.order.split(",").filter(Boolean);
    if (!body || !keys.length) return askWhole(whole.allowed.next());
    const shown = rowsOf(body);
    const told = rowsOf(fresh.querySelector("tbody"));
    const items = keys.map((key) => {
      if (told.has(key)) return { key, cells: [...told.get(key).children], version, like: told.get(key) };
      // A row that waits for the pointer to leave is known though it is not shown.
      return shown.has(key) ? { key } : arranged.items.get(key) || { key };
    });
    const unknown = items.filter((item) => !item.cells && !shown.has(item.key));
    if (!unknown.length) return arrange(body, items, version);
    fillShown(shown, items);
    // What was told of rows that can't come yet counts when the others are told, or two answers would wait for each other's rows for ever.
    for (const item of items) {
      if (item.cells && !shown.has(item.key) && version >= (arranged.items.get(item.key)?.version || 0)) arranged.items.set(item.key, item);
    }
    if (unknown.length > ROWS.most) return askWhole(whole.allowed.next());
    for (const { key } of unknown) some.keys.add(key);
    return askSome(Date.now());
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

  function release() {
    if (live.still) return;
    for (const [name, fresh] of [...waiting]) {
      const node = document.querySelector(`[data-part="${CSS.escape(name)}"]`);
      if (node && !held(node) && !(moves(node, fresh) && live.isAtBelow(node))) {
        put(node, fresh);
        waiting.delete(name);
      }
    }
    show();
  }

  function updateParts(fresh) {
    for (const node of document.querySelectorAll("[data-part]")) {
      const other = fresh.querySelector(`[data-part="${CSS.escape(node.dataset.part)}"]`);
      if (!other) continue;
      const quiet = "partQuiet" in node.dataset;
      if ((held(node) && (!quiet || node.contains(document.activeElement))) || (moves(node, other) && live.isAtBelow(node))) {
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
    for (const kind of ["pointerout", "focusout", "live:rest"]) document.addEventListener(kind, () => setTimeout(release));
  }

  // ---- When ----

  // The answer as a document and the revision that it shows; nothing where there is none, or the page must not change or shows something else by now.
  async function answerTo(address) {
    const shown = location.href;
    try {
      const answer = await fetch(address, { headers: { Accept: "text/html" }, cache: "no-store" });
      if (answer.ok && !answer.redirected) {
        const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
        if (!live.still && location.href === shown) return { fresh, version: Number(fresh.querySelector("[data-version]").dataset.version) };
      } else if (answer.status < 500 && answer.status !== 429) return null;
    } catch {
      // The network is away; live.js says so.
    }
    // What it was asked for is not on the page yet.
    askWhole(live.still || location.href !== shown ? Date.now() : Date.now() + LATER_MS);
    return null;
  }

  async function ask(kind, address, use) {
    kind.at = Infinity;
    kind.askedAt = Date.now();
    kind.open += 1;
    const answer = await answerTo(address);
    kind.open -= 1;
    if (answer) use(answer.fresh, answer.version);
    plan();
  }

  function askForWhole() {
    whole.allowed.take();
    ask(whole, from || location.href, (fresh, version) => {
      updateParts(fresh);
      if (listId) updateRows(fresh, version);
      askAgain(fresh);
    });
  }

  function askAgain(page) {
    const again = page.querySelector("[data-again]");
    if (again) askWhole(Date.now() + Number(again.dataset.again));
  }

  function askForSome() {
    if (!some.keys.size) some.allowed.take();
    const address = new URL(location.href);
    address.searchParams.set("rows", [...new Set([...some.keys, ...some.strangers])].join(","));
    some.keys.clear();
    some.strangers.clear();
    ask(some, address, updateSome);
  }

  // A page that stands still asks for nothing; what it owes is due when it goes on.
  function plan() {
    for (const [kind, most, go] of [[some, ROWS.open, askForSome], [whole, 1, askForWhole]]) {
      clearTimeout(kind.timer);
      if (kind.at < Infinity && kind.open < most && !live.still) kind.timer = setTimeout(go, Math.max(kind.at, kind.askedAt + GAP_MS) - Date.now());
    }
  }

  function askWhole(at) {
    whole.at = Math.min(whole.at, at);
    plan();
  }

  function askSome(at) {
    some.at = Math.min(some.at, at);
    plan();
  }

  document.addEventListener("live:pause", plan);
  document.addEventListener("visibilitychange", plan);

  function changed(keys) {
    if (only && !keys.includes(only)) return;
    const region = listId && document.getElementById(listId);
    const body = listId && bodyOf(document);
    if (!body || !("namedRows" in region.dataset)) {
      askWhole(whole.allowed.next());
      return;
    }
    const shown = rowsOf(body);
    const known = keys.filter((key) => shown.has(key));
    if (some.keys.size + known.length > ROWS.most) {
      askWhole(whole.allowed.next());
      return;
    }
    for (const key of known) some.keys.add(key);
    some.strangers = new Set([...some.strangers, ...keys.filter((key) => !shown.has(key))].slice(-ROWS.strangers));
    askSome(known.length ? Date.now() : some.allowed.next());
    // Other parts of the page may follow a little later.
    askWhole(Date.now() + LATER_MS);
  }

  live.follow(topic, {
    version: Number(script.dataset.version),
    snapshot: `/live/${topic}/snapshot`,
    apply: (changes) => changed(changes.map(([key]) => key)),
    replace: () => askWhole(0),
  });
  if (also) {
    live.follow(also, {
      version: Number(script.dataset.version),
      snapshot: `/live/${also}/snapshot`,
      apply: () => askWhole(whole.allowed.next()),
      replace: () => askWhole(0),
    });
  }
  askAgain(document);
})();
