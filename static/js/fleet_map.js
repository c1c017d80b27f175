// The fleet map on the page: racks as cards with one canvas each, one focus for all cells, a tip, filters, and the live changes.
(() => {
  "use strict";

  const { live, Fleet, fleetWords, fleetDraw } = window.gpufleet;
  const { format, setText } = live;
  const { DIM } = fleetDraw;
  const SIZES = [8, 11, 14, 18, 22, 26, 32];
  const SCREENS = 1.25; // how many screens the whole map may fill before its cells get smaller
  const GAP = 2;
  const NODE_GAP = 14;
  const LABELS_FROM = 14;
  const LABEL_FONT = "11px";
  const TALL = 24; // nodes in a column before a group flows into the next
  const EXPIRE_MS = 5000;
  const SWATCH = 12;
  const NARROWING = ["type", "team", "health"];

  const root = document.querySelector("[data-map]");
  const grid = root.querySelector(".map-grid");
  const places = root.querySelector(".map-places");
  const cursorMark = root.querySelector(".map-cursor");
  const tip = root.querySelector(".map-tip");
  const spokenCell = document.getElementById("map-cell");
  const form = document.querySelector("[data-map-form]");
  const count = document.querySelector("[data-count]");
  const said = document.querySelector("[data-map-said]");

  const painter = new fleetDraw.Painter();
  let fleet = null;
  let drawn = null;
  let cards = [];
  let spots = null; // by GPU: [card, x, y]
  let matching = null;
  let cursor = -1;
  let pointed = -1;
  let size = 0;
  let chosen = false; // the person has said how large the cells are to be
  let frame = 0;

  const choice = (name) => form.elements[name].value;

  // ---- Layout: groups become cards, nodes become rows of cells ----

  function groups() {
    const depth = Number(choice("group"));
    const found = new Map();
    for (let number = 0; number < fleet.size; number += 1) {
      const path = fleet.groupOf(number, depth);
      const key = path.join("/");
      if (!found.has(key)) found.set(key, { path, nodes: new Map() });
      const { nodes } = found.get(key);
      const node = fleet.node[number];
      if (!nodes.has(node)) nodes.set(node, []);
      nodes.get(node).push(number);
    }
    return [...found.values()];
  }

  // What the names of a group's nodes begin with alike: said once, in its head, so that the room goes to the cells.
  function sharedStart(names) {
    let length = names.length > 1 ? Math.min(...names.map((name) => name.length)) : 0;
    while (length && names.some((name) => name.slice(0, length) !== names[0].slice(0, length))) length -= 1;
    return names[0].slice(0, names[0].slice(0, length).lastIndexOf("-") + 1);
  }

  function labelWidth(labels) {
    if (size < LABELS_FROM) return 0;
    const measure = document.createElement("canvas").getContext("2d");
    measure.font = `${LABEL_FONT} ${getComputedStyle(grid).fontFamily}`;
    return Math.ceil(Math.max(...labels.map((label) => measure.measureText(label).width))) + 8;
  }

  function layOut() {
    if (chosen) arrange();
    else fit();
    drawLabels();
    drawAll();
    moveCursorMark();
    sizeButtons();
  }

  // The largest cells with which the whole map is not much taller than the screen; a finger needs larger ones, and scrolls.
  function fit() {
    const room = Math.max(innerHeight, 640) * SCREENS;
    let [low, high] = [SIZES[0], SIZES[SIZES.length - 1]];
    if (matchMedia("(pointer: coarse)").matches) low = fleet.size > 1024 ? 14 : 24;
    while (low < high) {
      size = Math.ceil((low + high) / 2);
      arrange();
      if (places.scrollHeight <= room && places.scrollWidth <= places.clientWidth) low = size;
      else high = size - 1;
    }
    size = low;
    arrange();
    widen();
  }

  // Then as large as the rows of racks allow: room beside the cells is of no use to anybody.
  function widen() {
    const before = rackRows();
    for (const larger of [1, 2, 3, 4, 5, 6].map((step) => size + step).filter((one) => one <= SIZES[SIZES.length - 1])) {
      size = larger;
      arrange();
      if (rackRows() === before && places.scrollWidth <= places.clientWidth) continue;
      size = larger - 1;
      arrange();
      return;
    }
  }

  const rackRows = () => new Set(cards.map((card) => card.canvas.offsetTop)).size;

  function arrange() {
    const pitch = size + GAP;
    const wide = places.clientWidth;
    const all = groups();
    spots = new Array(fleet.size);
    drawn = new Int32Array(fleet.size).fill(-1);
    const sections = new Map();
    cards = all.map((group) => {
      const nodes = [...group.nodes.keys()];
      const names = nodes.map((node) => fleet.nodes.name[node]);
      const start = size < LABELS_FROM ? "" : sharedStart(names);
      const labels = names.map((name) => name.slice(start.length));
      const label = labelWidth(labels);
      const cells = Math.max(...[...group.nodes.values()].map((gpus) => fleet.index[gpus[gpus.length - 1]] + 1));
      const nodeWidth = label + cells * pitch;
      const fitting = Math.max(1, Math.floor((wide - 26 + NODE_GAP) / (nodeWidth + NODE_GAP)));
      const columns = Math.min(fitting, Math.ceil(nodes.length / TALL));
      const rows = Math.ceil(nodes.length / columns);
      const card = { group, nodes, start, labels, label, nodeWidth, columns, rows, width: columns * (nodeWidth + NODE_GAP) - NODE_GAP, height: rows * pitch };
      nodes.forEach((node, place) => {
        const x = Math.floor(place / rows) * (nodeWidth + NODE_GAP) + label;
        const y = (place % rows) * pitch;
        for (const number of group.nodes.get(node)) spots[number] = [card, x + fleet.index[number] * pitch, y];
      });
      const [cluster, parent] = [group.path[0], group.path.slice(1, -1).join(" / ")];
      if (!sections.has(cluster)) sections.set(cluster, new Map());
      const parents = sections.get(cluster);
      if (!parents.has(parent)) parents.set(parent, []);
      parents.get(parent).push(card);
      return card;
    });
    build(sections);
  }

  const box = (className, ...children) => {
    const made = document.createElement("div");
    made.className = className;
    made.append(...children);
    return made;
  };
  const title = (tag, text) => Object.assign(document.createElement(tag), { textContent: text });

  // Cluster, then what the groups hang on (a spine, say), then the groups themselves.
  function build(sections) {
    const made = [...sections].map(([cluster, parents]) => {
      const inner = [...parents].flatMap(([parent, mine]) => {
        const racks = mine.map(makeCard);
        return parent ? [box("map-parent", title("h3", parent), box("racks", ...racks))] : racks;
      });
      return box("map-cluster", title("h2", cluster), box("racks", ...inner));
    });
    places.replaceChildren(...made);
  }

  function makeCard(card) {
    card.note = document.createElement("span");
    const head = box("rack-head", title("b", card.group.path[card.group.path.length - 1]));
    if (card.start) head.append(title("i", `${card.start}…`));
    head.append(card.note);
    card.canvas = document.createElement("canvas");
    const dense = window.devicePixelRatio || 1;
    card.canvas.width = Math.ceil(card.width * dense);
    card.canvas.height = Math.ceil(card.height * dense);
    card.canvas.style.width = `${card.width}px`;
    card.canvas.style.height = `${card.height}px`;
    card.context = card.canvas.getContext("2d");
    card.context.scale(dense, dense);
    card.canvas.addEventListener("pointermove", (event) => point(hit(card, event)));
    card.canvas.addEventListener("pointerleave", () => point(-1));
    card.canvas.addEventListener("click", (event) => pressed(hit(card, event), event));
    card.numbers = [...card.group.nodes.values()].flat();
    return box("rack", head, card.canvas);
  }

  function drawLabels() {
    const font = getComputedStyle(grid).fontFamily;
    const ink = getComputedStyle(places).color;
    for (const card of cards) {
      if (!card.label) continue;
      const { context } = card;
      context.font = `${LABEL_FONT} ${font}`;
      context.textBaseline = "middle";
      context.fillStyle = ink;
      card.nodes.forEach((_, place) => {
        const x = Math.floor(place / card.rows) * (card.nodeWidth + NODE_GAP);
        context.clearRect(x, (place % card.rows) * (size + GAP), card.label, size + GAP);
        context.fillText(card.labels[place], x, (place % card.rows) * (size + GAP) + size / 2 + 0.5);
      });
    }
  }

  // ---- Drawing: once a frame, only what looks different ----

  function drawCell(number, colour, now) {
    const look = painter.look(fleet, number, colour, now) | (matching[number] ? 0 : DIM);
    if (drawn[number] === look) return false;
    drawn[number] = look;
    const [card, x, y] = spots[number];
    painter.draw(card.context, x, y, size, look);
    return true;
  }

  function drawNow(numbers) {
    const colour = choice("colour");
    const now = live.serverNow();
    const touched = new Set();
    if (numbers) {
      for (const number of numbers) if (drawCell(number, colour, now)) touched.add(spots[number][0]);
    } else {
      for (let number = 0; number < fleet.size; number += 1) if (drawCell(number, colour, now)) touched.add(spots[number][0]);
    }
    for (const card of touched) setText(card.note, noteOf(card, colour));
    if (cursor >= 0) speak();
    if (!tip.hidden) fillTip(pointed >= 0 ? pointed : cursor);
    countMatches();
    sayChoices();
  }

  function drawAll() {
    cancelAnimationFrame(frame);
    frame = 0;
    drawNow(null);
  }

  function drawSoon() {
    if (!frame) frame = requestAnimationFrame(drawAll);
  }

  // The one figure of a group that belongs to what the map is coloured by.
  function noteOf(card, colour) {
    const { numbers } = card;
    if (colour === "health") {
      const hurt = numbers.filter((number) => fleet.health[number]).length;
      return hurt ? `${hurt} not healthy` : "";
    }
    if (colour === "sm") {
      const read = numbers.filter((number) => fleet.sm[number] !== fleetWords.UNREAD);
      return read.length ? format.percentOf(read.reduce((sum, number) => sum + fleet.sm[number], 0), read.length * 100) : format.NOTHING;
    }
    return format.percentOf(numbers.reduce((sum, number) => sum + fleet.milli[number], 0), numbers.length * 1000);
  }

  // ---- Filters ----

  function match() {
    const [type, health, team] = [choice("type"), choice("health"), choice("team")];
    const words = choice("q").toLowerCase().split(/\s+/).filter(Boolean);
    matching = new Uint8Array(fleet.size).fill(1);
    const texts = words.length ? fleet.nodes.name.map((name, node) => [name, fleet.nodes.cluster[node], fleet.nodes.path[node], fleet.nodes.pool[node], fleet.nodes.id[node]].join(" ").toLowerCase()) : [];
    for (let number = 0; number < fleet.size; number += 1) {
      const mine = fleet.team(number);
      const fits =
        (!type || fleet.types[fleet.type[number]] === type) &&
        (!health || fleet.healths[fleet.health[number]] === health) &&
        (!team || (team === "free" ? mine === null : mine !== null && String(mine) === team)) &&
        words.every((word) => texts[fleet.node[number]].includes(word) || fleet.publicIds[number] === word);
      matching[number] = fits ? 1 : 0;
    }
  }

  function countMatches() {
    const fits = matching.reduce((sum, one) => sum + one, 0);
    const all = `${format.grouped(fleet.size)} ${fleet.size === 1 ? "GPU" : "GPUs"}`;
    setText(count, fits === fleet.size ? all : `${format.grouped(fits)} of ${all} ${fits === 1 ? "matches" : "match"}`);
  }

  // What a phone's button says, behind which the choices are.
  function sayChoices() {
    const word = (name) => form.elements[name].selectedOptions[0].textContent;
    const colour = form.querySelector("[name=colour]:checked + span").textContent;
    setText(said, [`${colour} by ${word("group").toLowerCase()}`, ...NARROWING.filter(choice).map(word), choice("q")].filter(Boolean).join(", "));
  }

  function fillTeams() {
    const { team } = form.elements;
    const wanted = team.dataset.wanted || team.value;
    const option = (value, text) => Object.assign(document.createElement("option"), { value, textContent: text });
    const named = [...fleet.teamNames()].map(([number, name]) => option(String(number), name));
    team.replaceChildren(option("", "Every team"), option("free", "Free"), ...named, option(String(fleetWords.ANOTHER), "Another team"), option(String(fleetWords.SEVERAL), "Several teams"), option(String(fleetWords.OUTSIDE), "Outside gpufleet"));
    team.value = wanted;
    if (team.value !== wanted) team.value = "";
    delete team.dataset.wanted;
    ownerKey();
  }

  // A cell for the key, drawn as the map draws it.
  function swatch(look) {
    const dense = window.devicePixelRatio || 1;
    const made = document.createElement("canvas");
    made.width = made.height = SWATCH * dense;
    made.className = "swatch-drawn";
    const context = made.getContext("2d");
    context.scale(dense, dense);
    painter.draw(context, 0, 0, SWATCH, look);
    return made;
  }

  function healthKey() {
    for (const item of document.querySelectorAll("[data-health]")) {
      item.querySelector("canvas")?.remove();
      item.prepend(swatch(painter.healthLook(item.dataset.health)));
    }
  }

  // Only teams that hold something, so that the key is as short as the truth.
  function ownerKey() {
    const holding = new Set();
    for (let number = 0; number < fleet.size; number += 1) holding.add(fleet.team(number));
    const key = document.querySelector('[data-legend="owner"]');
    const order = painter.teamsInOrder(fleet);
    const entry = (team, look) => {
      const item = document.createElement("span");
      item.className = "key-item";
      item.append(swatch(look), fleet.teamName(team));
      return item;
    };
    const present = [null, ...order.filter((team) => holding.has(team)), fleetWords.ANOTHER, fleetWords.SEVERAL, fleetWords.OUTSIDE].filter((team) => holding.has(team));
    const sample = (team) => {
      for (let number = 0; number < fleet.size; number += 1) if (fleet.team(number) === team) return painter.look(fleet, number, "owner", 0);
      return 0;
    };
    const signature = present.join();
    if (key.dataset.shows === signature) return;
    key.dataset.shows = signature;
    key.replaceChildren(...present.map((team) => entry(team, sample(team))));
  }

  function showKey() {
    for (const key of document.querySelectorAll("[data-legend]")) key.hidden = key.dataset.legend !== choice("colour");
  }

  // ---- One focus for all cells ----

  function speak() {
    const facts = fleet.facts(cursor, live.serverNow(), format);
    setText(spokenCell, [facts.name, facts.type, facts.team, facts.sm, facts.health, facts.place].join(", "));
  }

  function boxOf(number) {
    const [card, x, y] = spots[number];
    const canvas = card.canvas.getBoundingClientRect();
    return { left: canvas.left + x, top: canvas.top + y };
  }

  function moveCursorMark() {
    const shown = cursor >= 0 && grid.contains(document.activeElement);
    cursorMark.hidden = !shown;
    if (!shown) return;
    const [spot, origin] = [boxOf(cursor), grid.getBoundingClientRect()];
    cursorMark.style.width = cursorMark.style.height = `${size}px`;
    cursorMark.style.transform = `translate(${spot.left - origin.left}px, ${spot.top - origin.top}px)`;
  }

  function setCursor(number) {
    if (number < 0) return;
    cursor = number;
    speak();
    moveCursorMark();
    showTip(number);
    const spot = boxOf(number);
    const margin = 60;
    if (spot.top < margin + 48) scrollBy(0, spot.top - margin - 48);
    else if (spot.top > innerHeight - margin) scrollBy(0, spot.top - innerHeight + margin);
  }

  const matches = () => {
    const found = [];
    for (let number = 0; number < fleet.size; number += 1) if (matching[number]) found.push(number);
    return found;
  };

  // The nearest matching cell in a direction, by where cells stand on the page; steps aside cost more than steps ahead.
  function neighbour(number, dx, dy) {
    const corners = new Map(cards.map((card) => [card, card.canvas.getBoundingClientRect()]));
    const at = (one) => {
      const [card, x, y] = spots[one];
      const corner = corners.get(card);
      return [corner.left + x, corner.top + y];
    };
    const [x, y] = at(number);
    let best = -1;
    let least = Infinity;
    for (const other of matches()) {
      if (other === number) continue;
      const [ox, oy] = at(other);
      const ahead = (ox - x) * dx + (oy - y) * dy;
      const aside = Math.abs((ox - x) * dy) + Math.abs((oy - y) * dx);
      if (ahead <= 1) continue;
      if (dx && aside > 2) continue;
      const far = ahead + aside * 3;
      if (far < least) [best, least] = [other, far];
    }
    return best;
  }

  function inOrder(number, step) {
    const found = matches();
    const place = found.findIndex((one) => one >= number);
    if (place < 0) return found[found.length - 1] ?? -1;
    return found[Math.min(found.length - 1, Math.max(0, place + step))] ?? -1;
  }

  function edgeOfNode(number, last) {
    const mine = matches().filter((other) => fleet.node[other] === fleet.node[number]);
    return mine[last ? mine.length - 1 : 0] ?? number;
  }

  function nextGroup(number, step) {
    const shown = cards.filter((card) => card.numbers.some((one) => matching[one]));
    const place = shown.indexOf(spots[number][0]) + step;
    return shown[place] ? shown[place].numbers.find((one) => matching[one]) : number;
  }

  const KEYS = {
    ArrowRight: () => { const there = neighbour(cursor, 1, 0); return there < 0 ? inOrder(cursor, 1) : there; },
    ArrowLeft: () => { const there = neighbour(cursor, -1, 0); return there < 0 ? inOrder(cursor, -1) : there; },
    ArrowDown: () => neighbour(cursor, 0, 1),
    ArrowUp: () => neighbour(cursor, 0, -1),
    Home: (event) => (event.ctrlKey ? matches()[0] : edgeOfNode(cursor, false)),
    End: (event) => (event.ctrlKey ? matches().pop() : edgeOfNode(cursor, true)),
    PageDown: () => nextGroup(cursor, 1),
    PageUp: () => nextGroup(cursor, -1),
  };

  grid.addEventListener("keydown", (event) => {
    if (!fleet || event.altKey || event.metaKey) return;
    if (event.key === "Escape") {
      hideTip();
      return;
    }
    if (event.key === "Enter" && cursor >= 0) {
      open(cursor, event);
      return;
    }
    const go = KEYS[event.key];
    if (!go) return;
    event.preventDefault();
    setCursor(go(event) ?? -1);
  });
  function enter() {
    if (!fleet) return;
    if (cursor < 0 || !matching[cursor]) cursor = matches()[0] ?? -1;
    if (cursor >= 0 && grid.matches(":focus-visible")) setCursor(cursor);
  }
  grid.addEventListener("focus", enter);
  grid.addEventListener("blur", () => {
    cursorMark.hidden = true;
    hideTip();
  });

  function open(number, event) {
    const address = root.dataset.gpuUrl.replace("PUBLIC-ID", encodeURIComponent(fleet.publicIds[number]));
    if (event.ctrlKey || event.metaKey) window.open(address, "_blank", "noopener");
    else location.assign(address);
  }

  // ---- Pointer and tip ----

  function hit(card, event) {
    const x = event.offsetX;
    const y = event.offsetY;
    const column = Math.floor(x / (card.nodeWidth + NODE_GAP));
    const inner = x - column * (card.nodeWidth + NODE_GAP) - card.label;
    const row = Math.floor(y / (size + GAP));
    const node = card.nodes[column * card.rows + row];
    if (node === undefined || row >= card.rows || inner < 0) return -1;
    const index = Math.floor(inner / (size + GAP));
    return card.group.nodes.get(node).find((number) => fleet.index[number] === index) ?? -1;
  }

  function point(number) {
    if (number === pointed) return;
    pointed = number;
    if (number >= 0) showTip(number);
    else hideTip();
    places.classList.toggle("is-pointing", number >= 0);
  }

  // A finger has no hover: the first tap tells, the second opens.
  function pressed(number, event) {
    if (number < 0) return;
    if (event.pointerType === "touch" && cursor !== number) {
      grid.focus({ preventScroll: true });
      setCursor(number);
      return;
    }
    cursor = number;
    open(number, event);
  }

  function fillTip(number) {
    if (number < 0) return;
    const facts = fleet.facts(number, live.serverNow(), format);
    const lines = [facts.name, facts.type, facts.held ? `${facts.team} · ${facts.held}` : facts.team, facts.sm, facts.health, facts.place];
    while (tip.children.length < lines.length) tip.append(document.createElement(tip.children.length ? "span" : "b"));
    lines.forEach((line, place) => setText(tip.children[place], line));
  }

  function showTip(number) {
    fillTip(number);
    tip.hidden = false;
    const spot = boxOf(number);
    const origin = root.getBoundingClientRect();
    const { offsetWidth, offsetHeight } = tip;
    const left = Math.max(8, Math.min(spot.left + size + 8, document.documentElement.clientWidth - offsetWidth - 8));
    const below = spot.top + size + 8;
    const top = below + offsetHeight > innerHeight - 8 ? spot.top - offsetHeight - 8 : below;
    tip.style.transform = `translate(${Math.round(left - origin.left)}px, ${Math.round(top - origin.top)}px)`;
  }

  function hideTip() {
    tip.hidden = true;
  }

  // ---- What the person chooses ----

  function remember() {
    const query = new URLSearchParams();
    for (const [name, value] of new FormData(form)) {
      const field = form.elements[name];
      const plain = name === "colour" ? "sm" : name === "group" ? field.options[field.options.length - 1].value : "";
      if (value !== plain) query.set(name, value);
    }
    history.replaceState(null, "", query.size ? `?${query}` : location.pathname);
  }

  function recall() {
    for (const [name, value] of new URLSearchParams(location.search)) {
      const field = form.elements[name];
      if (!field) continue;
      if (name === "team") field.dataset.wanted = value;
      const before = field.value;
      field.value = value;
      if (!field.value) field.value = before;
    }
  }

  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", (event) => {
    if (!fleet) return;
    remember();
    showKey();
    match();
    if (event.target.name === "group") layOut();
    else drawAll();
    if (choice("colour") === "owner") ownerKey();
  });

  const nextSize = (step) => (step > 0 ? SIZES.find((one) => one > size) : SIZES.findLast((one) => one < size));

  function sizeButtons() {
    for (const button of document.querySelectorAll("[data-zoom]")) button.disabled = nextSize(Number(button.dataset.zoom)) === undefined;
  }

  function zoom(step) {
    size = nextSize(step) ?? size;
    chosen = true;
    layOut();
  }

  for (const button of document.querySelectorAll("[data-zoom]")) button.addEventListener("click", () => fleet && zoom(Number(button.dataset.zoom)));

  // ---- Data ----

  function replace(snapshot) {
    const before = cursor >= 0 ? fleet.ids[cursor] : null;
    fleet = new Fleet(snapshot);
    cursor = before === null ? -1 : (fleet.place.get(before) ?? -1);
    pointed = -1;
    fillTeams();
    healthKey();
    match();
    showKey();
    layOut();
    if (cursor < 0 && document.activeElement === grid) enter(); // it had the focus before there were cells, or its cell has gone
  }

  function changed(columns) {
    const numbers = fleet.change(columns);
    if (numbers === null || numbers.some((number) => fleet.owner[number] > 0 && !(fleet.owner[number] in fleet.owners) && !known.has(fleet.owner[number]))) {
      // A GPU came or went, or somebody holds one of whom the snapshot knew nothing: only a new one has the names.
      for (const number of numbers || []) known.add(fleet.owner[number]);
      live.refetch("gpus");
      return;
    }
    match();
    ownerKey();
    drawSoon();
  }
  // Owners that stayed without a name after a snapshot: they are other teams, and need not be asked for again.
  const known = new Set();

  function readings(frames) {
    if (fleet.read(frames, live.serverNow())) drawSoon();
    else live.refetch("gpus");
  }

  async function start() {
    recall();
    let snapshot;
    try {
      const answer = await fetch(root.dataset.snapshot, { headers: { Accept: "application/json" } });
      if (!answer.ok) throw new Error(String(answer.status));
      snapshot = await answer.json();
    } catch {
      setText(places.querySelector(".map-wait"), "The map could not be loaded. Reload the page, or use the table.");
      return;
    }
    for (const owner of snapshot.gpus.owner) if (!(owner in snapshot.owners)) known.add(owner);
    replace(snapshot);
    const { version } = snapshot;
    const map = { version, snapshot: root.dataset.snapshot, apply: changed, replace };
    live.follow("gpus", map);
    live.follow("nodes", map);
    live.follow("telemetry", { version, snapshot: root.dataset.readings, apply: readings, replace: (answer) => readings(answer.rows) });
    let width = places.clientWidth;
    new ResizeObserver(() => {
      if (places.clientWidth === width) return;
      width = places.clientWidth;
      layOut();
    }).observe(places);
    const restyle = () => {
      painter.restyle();
      delete document.querySelector('[data-legend="owner"]').dataset.shows;
      ownerKey();
      healthKey();
      drawn.fill(-1);
      drawLabels();
      drawAll();
    };
    new MutationObserver(restyle).observe(document.documentElement, { attributeFilter: ["data-theme"] });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", restyle);
    setInterval(() => !live.still && fleet.expire(live.serverNow()) && drawSoon(), EXPIRE_MS);
  }

  start();
})();
