// The log of a job's worker: its end and what is added to it, as long as it is looked at; what is before; and lines that the console finds in all of it.
//
// `data-log` names the job, `data-attempt` the attempt (none where it has not begun); the worker, and the rank where only its lines are shown, is
// chosen in `data-log-writer` or stated in `data-role`, `data-index` and `data-rank`. Offsets are those of the worker's log. A part of the page that is kept up to date may name a later attempt in `data-attempt-now`. Whatever a job writes stays text: it only
// ever becomes text nodes.
(() => {
  "use strict";

  const { live } = window.gpufleet;
  const panel = document.querySelector("[data-log]");
  if (!panel) return;
  const part = (name) => panel.querySelector(`[data-log-${name}]`);
  const [text, note, writer, form, find, told, steps, hitList] = ["text", "note", "writer", "search", "find", "found", "steps", "hits"].map(part);
  const [place, where, before, size] = ["place", "where", "before", "size"].map(part);
  const EVERY_MS = 1000;
  const SELDOM_MS = 5000;
  const TAIL_BYTES = Number(panel.dataset.tail || 16384);
  const EARLIER_BYTES = 65536;
  const AROUND = { before: 8192, behind: 24576 };
  const KEPT = 400000;
  const RANK_TAIL_BYTES = 196608;
  const MOST_MARKS = 2000;
  const MOST_SHOWN = 500;
  const job = `/api/v1/jobs/${encodeURIComponent(panel.dataset.log)}/logs`;

  let attempt = panel.dataset.attempt || "";
  let source = null;
  let ended = false;
  let tryAt = 0;
  let offset = 0;
  let whole = "";
  let first = null; // where `whole` begins
  let pieces = []; // of a rank: where each piece of `whole` begins in the worker's log, and its length
  let search = null; // what is looked for, and what was found
  let there = null; // what is shown instead of the end, around a line

  const atEnd = () => text.scrollHeight - text.scrollTop - text.clientHeight < 24;
  const worker = () => (writer ? writer.value.split("|") : [panel.dataset.role || "", panel.dataset.index || "0", panel.dataset.rank || ""]);
  const rank = () => worker()[2] || "";
  const tail = () => (rank() ? RANK_TAIL_BYTES : TAIL_BYTES);
  const bytes = (string) => new TextEncoder().encode(string).length;

  function sized(count) {
    for (const [power, unit] of [[3, "GiB"], [2, "MiB"], [1, "KiB"]])
      if (count >= 1024 ** power) return `${(count / 1024 ** power).toFixed(count >= 10 * 1024 ** power ? 0 : 1).replace(/\.0$/, "")} ${unit}`;
    return `${count} B`;
  }

  function address(path, more) {
    const [role, index] = worker();
    return `${path}?${new URLSearchParams({ ...(attempt ? { attempt } : {}), role, index, ...(rank() ? { rank: rank() } : {}), ...more })}`;
  }

  async function ask(path, more, signal) {
    const answer = await fetch(address(path, more), { headers: { Accept: "application/json" }, cache: "no-store", signal });
    const body = await answer.json();
    if (!answer.ok) throw new Error(body.detail || body.title || `The console answered ${answer.status}.`);
    return body;
  }

  // ---- What is shown ----

  // Text with what is looked for marked in it.
  function marked(string) {
    const found = document.createDocumentFragment();
    const pattern = search && new RegExp(search.wanted.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "giu");
    let at = 0;
    let count = 0;
    for (const hit of pattern ? string.matchAll(pattern) : []) {
      if ((count += 1) > MOST_MARKS) break;
      const mark = document.createElement("mark");
      mark.textContent = hit[0];
      found.append(string.slice(at, hit.index), mark);
      at = hit.index + hit[0].length;
    }
    found.append(document.createTextNode(string.slice(at)));
    return found;
  }

  function show() {
    place.hidden = !there;
    before.hidden = Boolean(there) || !first;
    if (there) {
      const line = document.createElement("span");
      line.className = "log-hit";
      line.append(marked(there.line));
      text.replaceChildren(marked(there.front), line, marked(there.behind));
      live.setText(where, `Around line ${there.number.toLocaleString("en")}.${whole.length > there.seen ? " More was written since." : ""}`);
      return;
    }
    text.replaceChildren(marked(whole));
    if (first) live.setText(size, isBefore());
  }

  const isBefore = () => `${sized(first)}${rank() ? " of the worker's log" : ""} are before.`;

  function add(more, at) {
    if (!more) return;
    const follow = atEnd();
    whole += more;
    if (rank()) pieces.push({ at, length: more.length });
    const cut = whole.length > KEPT;
    if (cut && rank()) {
      while (whole.length > KEPT && pieces.length > 1) whole = whole.slice(pieces.shift().length);
      first = pieces[0].at;
    } else if (cut) {
      const from = whole.indexOf("\n", whole.length - KEPT) + 1;
      first += bytes(whole.slice(0, from));
      whole = whole.slice(from);
    }
    if (there) live.setText(where, `Around line ${there.number.toLocaleString("en")}. More was written since.`);
    else if (cut) show();
    else text.append(marked(more));
    if (follow && !there) text.scrollTop = text.scrollHeight;
    if (search) search.grown = true;
  }

  function toEnd() {
    there = null;
    show();
    text.scrollTop = text.scrollHeight;
  }

  async function earlier() {
    const button = part("earlier");
    button.disabled = true;
    try {
      const from = Math.max(0, first - EARLIER_BYTES);
      let found = await ask(job, { offset: from, limit: first - from });
      // Of what is no longer kept nothing comes: the rest would reach beyond what is shown already.
      if (from < found.offset && found.offset < first) found = await ask(job, { offset: found.offset, limit: first - found.offset });
      const gone = found.offset > from || found.state !== "text";
      const held = text.scrollHeight - text.scrollTop;
      if (found.offset < first) {
        whole = found.text + whole;
        if (rank()) pieces.unshift({ at: found.offset, length: found.text.length });
      }
      first = gone ? 0 : from;
      show();
      if (gone) live.setText(note, "What is older is no longer kept.");
      text.scrollTop = text.scrollHeight - held;
    } catch (fault) {
      live.setText(note, fault.message);
    }
    button.disabled = false;
  }

  // ---- What is added ----

  function close() {
    if (source) source.close();
    source = null;
  }

  function open() {
    const mine = new EventSource(address(`${job}/stream`, { offset: String(offset) }));
    source = mine;
    mine.addEventListener("message", (event) => {
      if (mine !== source) return;
      const said = JSON.parse(event.data);
      attempt = said.attempt ? String(said.attempt) : attempt;
      if (said.state === "text") {
        offset = said.next_offset;
        if (first === null) first = said.offset;
        add(said.text, said.offset);
        if (!there) before.hidden = !first;
        if (first) live.setText(size, isBefore());
      }
      panel.dataset.state = said.state;
      const nothing = rank() && !whole && said.state === "text" ? `No line of rank ${rank()} in the last ${sized(tail())}.` : "";
      live.setText(note, said.note + nothing + (said.state === "unreachable" ? " Retrying." : ""));
    });
    mine.addEventListener("end", () => {
      if (mine !== source) return;
      ended = true;
      close();
      if (search) search.grown = true;
    });
    mine.addEventListener("error", () => {
      // The browser comes back by itself after an answer that is over; from one that was refused it does not.
      if (mine !== source || mine.readyState !== EventSource.CLOSED) return;
      close();
      tryAt = Date.now() + SELDOM_MS;
      if (!whole) live.setText(note, "The console does not give the log now. Retrying.");
    });
  }

  // What leads to the log elsewhere leads to that of the same worker.
  function links() {
    for (const [name, more] of [["page", {}], ["all", { format: "text" }]])
      for (const link of panel.querySelectorAll(`[data-log-${name}]`)) link.href = address(form.action, more);
  }

  function begin() {
    close();
    offset = -tail();
    ended = false;
    whole = "";
    first = null;
    pieces = [];
    there = null;
    tryAt = 0;
    live.setText(note, "");
    show();
    look();
  }

  function look() {
    const now = document.querySelector("[data-attempt-now]")?.dataset.attemptNow;
    if (now && now !== attempt && (!attempt || ended)) {
      attempt = panel.dataset.attempt = now;
      end(true);
      begin();
      return;
    }
    if (live.still) close();
    else if (attempt && !source && !ended && Date.now() >= tryAt) open();
    if (!live.still && search && search.done && search.grown && !search.over && Date.now() >= search.again) go();
  }

  // ---- What is looked for ----

  function end(quiet) {
    if (search) search.stop.abort();
    search = null;
    find.value = "";
    hitList.replaceChildren();
    hitList.hidden = true;
    steps.hidden = true;
    live.setText(told, "");
    panel.querySelector("[data-log-served]")?.remove();
    if (!quiet) toEnd();
  }

  function begun(wanted) {
    end(true);
    find.value = wanted;
    search = { wanted, hits: [], at: -1, offset: 0, line: 1, most: MOST_SHOWN, done: false, grown: false, over: false, busy: false, again: 0, stop: new AbortController() };
    there = null;
    show();
    part("file").href = address(form.action, { q: wanted, format: "found" });
    steps.hidden = false;
    go();
  }

  async function go() {
    const mine = search;
    if (!mine || mine.busy) return;
    mine.busy = true;
    mine.grown = false;
    let fault = "";
    let size_ = 0;
    do {
      try {
        const found = await ask(`${job}/search`, { q: mine.wanted, offset: mine.offset, line: mine.line, limit: 100 }, mine.stop.signal);
        if (mine !== search) return;
        list(mine, found.hits);
        Object.assign(mine, { offset: found.next_offset, line: found.next_line, done: found.done, over: found.ended });
        fault = found.note;
        size_ = found.size;
      } catch (broken) {
        if (mine !== search) return;
        mine.done = false;
        fault = broken.message;
        break;
      }
      tell(mine, size_);
    } while (!mine.done && mine.hits.length < mine.most && !live.still);
    mine.busy = false;
    mine.again = Date.now() + 2 * EVERY_MS;
    part("more").hidden = mine.done;
    tell(mine, size_, fault);
  }

  function tell(mine, of, fault) {
    const count = mine.hits.length;
    const lines = count === 1 ? "1 line" : `${count.toLocaleString("en")} lines`;
    const at = mine.at >= 0 ? `${(mine.at + 1).toLocaleString("en")} of ${lines}` : count || !mine.done ? lines : "No line holds it";
    const far = mine.done ? "" : `; looked at ${sized(mine.offset)}${of ? ` of ${sized(of)}` : ""}`;
    live.setText(told, `${at}${far}.${fault ? ` ${fault}` : ""}`);
  }

  function list(mine, hits) {
    for (const hit of hits) {
      const number = mine.hits.push(hit) - 1;
      const item = document.createElement("li");
      const button = document.createElement("button");
      const line = document.createElement("span");
      const said = document.createElement("span");
      line.className = "log-line";
      line.textContent = hit.line.toLocaleString("en");
      said.className = "log-said";
      said.append(marked(hit.text));
      button.type = "button";
      button.append(line, said);
      button.addEventListener("click", () => jump(number));
      item.append(button);
      hitList.append(item);
    }
    hitList.hidden = !mine.hits.length;
  }

  async function jump(number) {
    const mine = search;
    const hit = mine && mine.hits[number];
    if (!hit) return;
    hitList.children[mine.at]?.firstChild.removeAttribute("aria-current");
    mine.at = number;
    const button = hitList.children[number].firstChild;
    button.setAttribute("aria-current", "true");
    hitList.scrollTop = button.offsetTop - hitList.clientHeight / 2;
    tell(mine);
    const from = Math.max(0, hit.offset - AROUND.before);
    try {
      const [front, behind] = await Promise.all([
        hit.offset ? ask(job, { offset: from, limit: Math.max(1, hit.offset - from) }, mine.stop.signal) : { text: "", offset: 0 },
        ask(job, { offset: hit.offset, limit: AROUND.behind }, mine.stop.signal),
      ]);
      if (mine !== search || mine.at !== number) return;
      if (behind.offset > hit.offset || behind.state !== "text") throw new Error(behind.note || "This line is no longer kept.");
      const cut = behind.text.indexOf("\n");
      const line = cut < 0 ? behind.text : behind.text.slice(0, cut + 1);
      const lines = front.offset >= hit.offset ? "" : from ? front.text.slice(front.text.indexOf("\n") + 1) : front.text;
      there = { front: lines, line, behind: behind.text.slice(line.length), number: hit.line, seen: whole.length };
      show();
      const shown = text.querySelector(".log-hit");
      text.scrollTop = shown.offsetTop - text.clientHeight / 3;
    } catch (fault) {
      if (mine === search) live.setText(told, fault.message);
    }
  }

  function step(by) {
    if (!search || !search.hits.length) return;
    const count = search.hits.length;
    jump(search.at < 0 ? (by > 0 ? 0 : count - 1) : (search.at + by + count) % count);
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const wanted = find.value.trim();
    if (!wanted) end();
    else if (!attempt) live.setText(told, "There is no log yet.");
    else if (search && search.wanted === wanted) step(1);
    else begun(wanted);
  });
  find.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && event.shiftKey) {
      event.preventDefault();
      step(-1);
    } else if (event.key === "Escape" && (search || find.value)) {
      event.preventDefault();
      event.stopPropagation();
      end();
    }
  });
  // The cross of the field empties it.
  find.addEventListener("search", () => {
    if (!find.value && search) end();
  });
  part("previous").addEventListener("click", () => step(-1));
  part("next").addEventListener("click", () => step(1));
  part("more").addEventListener("click", () => {
    search.most = search.hits.length + MOST_SHOWN;
    go();
  });
  part("clear").addEventListener("click", () => {
    end();
    find.focus();
  });
  part("end").addEventListener("click", toEnd);
  part("earlier").addEventListener("click", earlier);
  writer?.addEventListener("change", () => {
    links();
    const wanted = search?.wanted;
    end(true);
    begin();
    if (wanted) begun(wanted);
  });

  text.replaceChildren();
  offset = -tail();
  setInterval(look, EVERY_MS);
  look();
  if (find.value.trim() && attempt) begun(find.value.trim());
})();
