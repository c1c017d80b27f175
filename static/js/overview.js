// The overview: figures, the split bars and the lists, kept by what the socket sends. dashboards/presenters.py makes the same texts on the server.
(() => {
  "use strict";

  const { live } = window.gpufleet;
  const { format, setText } = live;
  const SICK_SHOWN = 3;
  const HOLDERS_SHOWN = 4;
  const OTHERS = 0;
  const SEVERAL = -1;
  const OUTSIDE = -2;
  const APART = new Map([[SEVERAL, [SEVERAL, "Shared by several teams"]], [OUTSIDE, [OUTSIDE, "Outside gpufleet"]]]);
  const SVG_WIDTH = 1000;
  const TENTH = 100; // milli-GPU
  const ROUND_MONEY_FROM = 100000000;
  const PARTS = ["computing", "gap", "unread", "free", "away"];

  const data = JSON.parse(document.getElementById("overview-data").textContent);
  let own = data.own;

  const field = (root, name) => root.querySelector(`[data-f="${name}"]`);
  const fill = (root, texts) => {
    for (const [name, text] of Object.entries(texts)) setText(field(root, name), text);
  };

  function summed(types) {
    const total = {};
    for (const figures of Object.values(types)) for (const [name, value] of Object.entries(figures)) total[name] = (total[name] || 0) + value;
    return total;
  }

  function money(micros) {
    return format.money(micros, micros >= ROUND_MONEY_FROM ? 0 : 2, own.currency);
  }

  function gapCost(types) {
    if (!own.rates) return null;
    return Object.entries(types).reduce((sum, [name, figures]) => sum + Math.round((figures.gap * (own.rates[name] || 0)) / 1000), 0);
  }

  function lengths(figures) {
    const all = figures.gpus * 1000;
    return { computing: figures.active_held, gap: figures.gap, unread: figures.held_unread, free: all - figures.held - figures.away, away: figures.away };
  }

  // Tenths of GPUs by part, by the largest remainder: what is printed adds up to the whole.
  function rounded(parts) {
    const whole = Math.floor((2 * parts.reduce((sum, milli) => sum + milli, 0) + TENTH) / (2 * TENTH));
    const found = parts.map((milli) => Math.floor(milli / TENTH));
    const left = whole - found.reduce((sum, count) => sum + count, 0);
    const split = parts.map((milli, place) => [milli % TENTH, place]).filter(([rest]) => rest);
    for (const [, place] of split.sort((one, other) => other[0] - one[0]).slice(0, left)) found[place] += 1;
    return found;
  }

  function tenths(figures) {
    const parts = Object.entries(lengths(figures));
    const printed = rounded(parts.map(([, milli]) => milli));
    return Object.fromEntries(parts.map(([part], place) => [part, printed[place]]));
  }

  // The same by the largest remainder, of what is printed as free.
  function freeTold(figures, free) {
    const all = lengths(figures).free;
    if (!all) return "";
    const parts = [
      ["startable", all - figures.kept - figures.scattered - figures.suspect],
      ["kept", figures.kept],
      ["fragmented", figures.scattered],
      ["suspect", figures.suspect],
    ].map(([word, milli]) => ({ word, count: Math.floor((free * milli) / all), rest: (free * milli) % all }));
    const left = free - parts.reduce((sum, part) => sum + part.count, 0);
    for (const part of [...parts].sort((one, other) => other.rest - one.rest).slice(0, left)) part.count += 1;
    return parts
      .filter((part) => part.count)
      .map((part) => `${told(part.count)} ${part.word}`)
      .join(", ");
  }

  const told = (count) => format.grouped(Math.floor(count / 10)) + (count % 10 ? `.${count % 10}` : "");

  const unit = (count) => (String(count) === "1" ? "GPU" : "GPUs");

  function texts(figures, cost) {
    const all = figures.gpus * 1000;
    const read = figures.read > 0;
    const heldRead = figures.held - figures.held_unread;
    const unread = figures.gpus - figures.read;
    const note = unread && read ? `${format.grouped(unread)} without a reading` : read || !figures.gpus ? "" : "No telemetry yet";
    const active = format.wholeGpus(figures.active);
    const printed = tenths(figures);
    const gap = heldRead || !figures.held ? told(printed.gap) : format.NOTHING;
    return {
      gpus: format.grouped(figures.gpus),
      gpus_note: figures.out ? `${format.grouped(figures.out)} out of service` : "all in service",
      held: format.percentOf(figures.held, all),
      held_note: `${told(printed.computing + printed.gap + printed.unread)} of ${format.grouped(figures.gpus)} ${unit(figures.gpus)}`,
      sm: read ? format.percentOf(figures.active, figures.read * 1000) : format.NOTHING,
      sm_note: note || (active === "1" ? "1 GPU's worth" : `${active} GPUs' worth`),
      sm_held: format.percentOf(figures.active_held, heldRead),
      gap,
      gap_unit: unit(gap),
      free_note: freeTold(figures, printed.free),
      cost: cost === null || (figures.held && !heldRead) ? format.NOTHING : money(cost),
    };
  }

  function answer(sick, { gap, gap_unit: gapUnit }) {
    const nodes = sick ? `${format.grouped(sick)} ${sick === 1 ? "node needs" : "nodes need"} attention` : "All nodes healthy";
    return `${nodes}, ${gap === "0" || gap === format.NOTHING ? "no GPU" : `${gap} ${gapUnit}`} idle.`;
  }

  function drawSplit(svg, figures) {
    const all = Math.max(1, figures.gpus * 1000);
    const long = lengths(figures);
    let before = 0;
    PARTS.forEach((part, number) => {
      const x = Math.floor((before * SVG_WIDTH) / all);
      before += long[part];
      const width = Math.floor((before * SVG_WIDTH) / all) - x;
      const rect = svg.children[number];
      if (rect.getAttribute("x") !== String(x)) rect.setAttribute("x", x);
      if (rect.getAttribute("width") !== String(width)) rect.setAttribute("width", width);
    });
  }

  function showIf(node, shown) {
    if (node && node.hidden === shown) node.hidden = !shown;
  }

  // ---- Lists ----

  const listOf = (name, fillRow) => {
    const body = document.querySelector(`[data-rows="${name}"]`);
    return live.list(body, { template: document.getElementById(`${name}-row`), fill: fillRow, button: document.querySelector(`[data-apply="${name}"]`) });
  };

  const nodeAddress = document.querySelector('[data-rows="sick"]').dataset.url;
  const sickList = listOf("sick", (row, node) => {
    const link = row.querySelector("[data-f-link]");
    setText(link, node.name);
    const address = nodeAddress.replace("PUBLIC-ID", encodeURIComponent(node.key));
    if (link.getAttribute("href") !== address) link.href = address;
    const state = row.querySelector("[data-f-status]");
    const shown = state.querySelector("[data-status]");
    if (!shown || shown.dataset.status !== node.health) {
      state.replaceChildren(document.querySelector(`[data-status-of="${CSS.escape(node.health)}"]`).content.cloneNode(true));
    }
    fill(row, { reason: node.reason, gpus: String(node.gpus), jobs: String(node.jobs) });
    live.setMoment(row.querySelector("[data-f-moment]"), node.since);
    const step = row.querySelector("[data-f-step]");
    if (step) nextStep(step, node, address);
  });

  // What an operator does next with the node; `drains`: the node itself.
  function nextStep(link, node, address) {
    const verb = document.querySelector(`[data-verb-of="${CSS.escape(node.health)}"]`)?.content.textContent || "";
    setText(link, verb);
    link.setAttribute("aria-label", `${verb}: ${node.name}`);
    const to = `${address}${node.drains ? "health/?to=draining" : "#health"}`;
    if (link.getAttribute("href") !== to) link.setAttribute("href", to);
  }

  const holdersAddress = document.querySelector('[data-rows="holders"]').dataset.url;
  const holderList = listOf("holders", (row, holder) => {
    fill(row, holder);
    const address = `${holdersAddress}?team=${holder.key}`;
    if (field(row, "name").getAttribute("href") !== address) field(row, "name").setAttribute("href", address);
  });
  const queueList = listOf("queue", (row, waiting) => fill(row, waiting));
  const typeList = listOf("types", (row, type) => {
    fill(row, type.texts);
    drawSplit(row.querySelector(".split"), type.figures);
  });

  function holders(rows) {
    const teams = new Map();
    for (const [owner, held, idle, read, active] of rows) {
      const named = own.owners[owner];
      const [key, name] = APART.get(owner) || (named ? named : [OTHERS, "Other teams"]);
      const sums = teams.get(key) || { key, name, idle: 0, held: 0, read: 0, active: 0 };
      sums.idle += idle;
      sums.held += held;
      sums.read += read;
      sums.active += active;
      teams.set(key, sums);
    }
    const last = (team) => Number(team.key <= OTHERS);
    const all = [...teams.values()]
      .filter((team) => team.idle)
      .sort((a, b) => last(a) - last(b) || b.idle - a.idle || b.held - a.held || a.key - b.key);
    const idle = rounded(all.map((team) => team.idle));
    const held = rounded(all.map((team) => team.held));
    const shown = all.slice(0, HOLDERS_SHOWN).map((team, place) => ({
      key: team.key,
      name: team.name,
      idle: told(idle[place]),
      held: told(held[place]),
      sm: team.read ? format.percentOf(team.active, team.read) : format.NOTHING,
    }));
    return { rows: shown, more: all.length - shown.length, moreIdle: told(idle.slice(HOLDERS_SHOWN).reduce((sum, count) => sum + count, 0)) };
  }

  // ---- All of it ----

  const headline = document.querySelector(".headline");

  function draw(rows) {
    const total = summed(rows.types);
    const words = texts(total, gapCost(rows.types));
    fill(headline, words);
    drawSplit(headline.querySelector("[data-split]"), total);
    const printed = tenths(total);
    for (const [part, milli] of Object.entries(lengths(total))) {
      setText(field(headline, `${part}_gpus`), told(printed[part]));
      if (part === "unread" || part === "away") showIf(headline.querySelector(`[data-if="${part}"]`), milli > 0);
    }
    showIf(headline.querySelector(".free-note"), words.free_note !== "");
    setText(field(document, "answer"), answer(rows.sick_total, words));
    if (rows.telemetry) live.setMoment(field(document, "telemetry"), rows.telemetry);
    typeList(
      Object.entries(rows.types).map(([name, figures]) => {
        const cost = own.rates && name in own.rates ? gapCost({ [name]: figures }) : null;
        return { key: name, figures, texts: { ...texts(figures, cost), free: told(tenths(figures).free) } };
      }),
    );
    const sick = rows.sick.map(([key, name, health, reason, since, gpus, jobs, drains]) => ({ key, name, health, reason, since, gpus, jobs, drains }));
    sickList(sick);
    showIf(document.querySelector('[data-filled="sick"]'), sick.length > 0);
    showIf(document.querySelector('[data-empty="sick"]'), sick.length === 0);
    showIf(document.querySelector('[data-more="sick"]'), rows.sick_total > SICK_SHOWN);
    setText(field(document, "sick_more"), String(rows.sick_total - sick.length));
    const idle = holders(rows.holders);
    holderList(idle.rows);
    showIf(document.querySelector('[data-filled="holders"]'), idle.rows.length > 0);
    showIf(document.querySelector('[data-empty="holders"]'), idle.rows.length === 0);
    showIf(document.querySelector('[data-more="holders"]'), idle.more > 0);
    setText(field(document, "holders_more"), format.grouped(idle.more));
    setText(field(document, "holders_more_idle"), idle.moreIdle);
    queueList(
      rows.queue.map(([name, jobs, milli, median, longest]) => ({
        key: name,
        jobs: format.grouped(jobs),
        gpus: format.gpus(milli),
        median: jobs ? format.duration(median) : format.NOTHING,
        longest: jobs ? format.duration(longest) : format.NOTHING,
      })),
    );
    live.announce(`${words.held} of GPUs allocated, ${words.sm} utilization, ${words.gap} ${words.gap_unit} idle.`, { seldom: true });
  }

  live.follow("overview", {
    version: data.version,
    snapshot: "/live/overview/snapshot",
    apply: draw,
    replace(snapshot) {
      own = snapshot.own;
      draw(snapshot.rows);
    },
  });
})();
