// Live pages: a snapshot, then numbered changes over one socket. Used by every page that shows what is happening now.
//
//   gpufleet.live.follow("gpus", {
//     version,                     // the revision that the page's own HTML or data shows
//     snapshot: "/live/gpus/snapshot",
//     apply(rows, message) {},     // changed rows, at least as new as message.v
//     replace(snapshot) {},        // everything, when something was missed
//   });
//
// A change is applied if `from <= mine < v`, ignored if `v <= mine`; otherwise something was missed and the snapshot is fetched.
// While the page is paused or hidden the server is told to send nothing and nothing on the page moves; coming back is one catch-up.
(() => {
  "use strict";

  const { shell } = window.gpufleet;
  const SILENT_MS = 1800; // nearly two beats of the server: the socket may be dead, and the page says so
  const DEAD_MS = 15000; // it is dead, whatever it believes
  const LOOK_MS = 200;
  const RECONNECT_MS = { first: 400, most: 20000 };
  const BUFFER_LIMIT = 64;
  const FLASH_MS = 900;
  const SELDOM_MS = 30000;
  const REST_MS = 60000;
  const SESSION_OVER = 4401;
  const NOT_ALLOWED = 4403;

  const topics = new Map();
  let socket = null;
  let failures = 0;
  let reconnectTimer = 0;
  let heardAt = 0;
  let openedAt = 0;
  let paused = false;
  let ended = "";
  let state = "";

  const still = () => paused || document.hidden;
  const jittered = (milliseconds) => milliseconds * (0.5 + Math.random());
  const motionIsWelcome = () => matchMedia("(prefers-reduced-motion: no-preference)").matches;

  // ---- The socket ----

  function connect() {
    clearTimeout(reconnectTimer);
    if (socket || ended || still() || !topics.size) return;
    const mine = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/ws/live/`);
    socket = mine;
    heardAt = heardAt || Date.now();
    show();
    mine.onopen = () => {
      openedAt = Date.now();
      // The tab may have been hidden, or the page paused, while the socket was on its way.
      if (still()) say({ hidden: true });
      else for (const name of topics.keys()) join(name);
    };
    mine.onmessage = (event) => {
      if (mine !== socket) return;
      heard();
      receive(JSON.parse(event.data));
    };
    mine.onclose = (event) => {
      if (mine !== socket) return;
      socket = null;
      if (event.code === SESSION_OVER) end("Your session has ended.", "Sign in again");
      else if (event.code === NOT_ALLOWED) end("Your roles don't allow this page any more.", "Reload");
      else retry();
    };
  }

  function retry() {
    if (still() || ended) return;
    const wait = Math.min(RECONNECT_MS.most, RECONNECT_MS.first * 2 ** failures);
    failures += 1;
    reconnectTimer = setTimeout(connect, jittered(wait));
    show();
  }

  function drop() {
    clearTimeout(reconnectTimer);
    const old = socket;
    socket = null;
    if (old) old.close();
  }

  function heard() {
    heardAt = Date.now();
    failures = 0;
    show();
  }

  function say(message) {
    if (socket && socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify(message));
  }

  function join(name) {
    say({ subscribe: name, since: topics.get(name).mine });
  }

  function receive(message) {
    if (still()) return;
    if ("beat" in message) {
      shell.setServerTime(message.beat);
      return;
    }
    if (message.resync && !message.topic) {
      for (const name of topics.keys()) refetch(name);
      return;
    }
    const topic = topics.get(message.topic);
    if (!topic) return;
    if (message.resync) refetch(message.topic);
    else if (message.refused) announce(message.refused);
    else if ("v" in message) take(topic, message);
  }

  function take(topic, message) {
    if (topic.fetching) {
      if (topic.buffer.push(message) > BUFFER_LIMIT) topic.buffer.shift();
      return;
    }
    if (message.v <= topic.mine) return;
    if (message.from > topic.mine) {
      refetch(topic.name);
      return;
    }
    topic.page.apply(message.rows, message);
    topic.mine = message.v;
  }

  async function refetch(name, attempt = 0) {
    const topic = topics.get(name);
    if (topic.fetching && !attempt) return;
    topic.fetching = true;
    // Spread out, as a server that comes back is asked by every open page at once.
    await new Promise((done) => setTimeout(done, Math.random() * 250 + (attempt ? jittered(Math.min(RECONNECT_MS.most, 1000 * 2 ** attempt)) : 0)));
    if (still() || ended) {
      topic.fetching = false;
      return;
    }
    let snapshot = null;
    try {
      const answer = await fetch(topic.page.snapshot, { headers: { Accept: "application/json" }, cache: "no-store" });
      if (answer.status === 401) return end("Your session has ended.", "Sign in again");
      if (answer.status === 403) return end("Your roles don't allow this page any more.", "Reload");
      if (answer.ok) snapshot = await answer.json();
    } catch {
      // The network is away: the next attempt below.
    }
    if (still()) {
      topic.fetching = false;
      return;
    }
    if (!snapshot) return refetch(name, attempt + 1);
    topic.fetching = false;
    topic.resyncs += 1;
    if (snapshot.version >= topic.mine) {
      topic.page.replace(snapshot);
      topic.mine = snapshot.version;
    }
    const waiting = topic.buffer;
    topic.buffer = [];
    for (const message of waiting) take(topic, message);
  }

  // ---- Pause, hidden tabs, leaving and coming back ----

  function quieten() {
    for (const topic of topics.values()) topic.buffer = [];
    clearTimeout(reconnectTimer);
    say({ hidden: true });
  }

  function comeBack() {
    if (still() || ended) return;
    heardAt = Date.now();
    if (socket && socket.readyState === WebSocket.OPEN) for (const name of topics.keys()) join(name);
    else {
      drop();
      failures = 0;
      connect();
    }
    show();
  }

  function setPaused(wanted) {
    if (paused === wanted) return;
    paused = wanted;
    // Other scripts of the page (relative times) hold still as well.
    document.documentElement.toggleAttribute("data-paused", paused);
    if (paused) quieten();
    show();
    document.dispatchEvent(new CustomEvent("live:pause", { detail: { paused } }));
    if (!paused) comeBack();
  }

  document.addEventListener("visibilitychange", () => (document.hidden ? quieten() : comeBack()));
  addEventListener("pagehide", drop);
  addEventListener("pageshow", (event) => event.persisted && comeBack());
  addEventListener("online", comeBack);
  setInterval(() => {
    if (still() || ended || !topics.size) return;
    show();
    if (Date.now() - heardAt > DEAD_MS && socket && socket.readyState === WebSocket.OPEN && Date.now() - openedAt > DEAD_MS) {
      drop();
      retry();
    }
  }, LOOK_MS);

  function end(reason, action) {
    ended = reason;
    drop();
    show(action);
  }

  // ---- What the page says about itself ----

  const place = document.getElementById("live");
  const banner = document.getElementById("stale");
  const element = (tag, properties, ...children) => {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  };
  const stateIcon = element("i", { className: "icon" });
  const stateWord = element("span", { className: "live-word" });
  const stateMark = element("span", { className: "live-state" }, stateIcon, stateWord);
  const pauseIcon = element("i", { className: "icon icon-pause" });
  const pauseButton = element("button", { type: "button", className: "btn-icon", title: "Pause live updates" }, pauseIcon);
  const summary = element("p", { className: "unseen" });
  const bannerText = element("span", {});
  const bannerAge = element("span", {});
  stateIcon.setAttribute("aria-hidden", "true");
  pauseIcon.setAttribute("aria-hidden", "true");
  pauseButton.setAttribute("aria-label", "Pause live updates");
  pauseButton.setAttribute("aria-pressed", "false");
  summary.setAttribute("aria-live", "polite");
  // The age ticks every second: seen by the eye, not read out.
  bannerAge.setAttribute("aria-hidden", "true");
  pauseButton.addEventListener("click", () => setPaused(!paused));

  const LOOKS = {
    live: ["tone-good", "icon-check", "Live"],
    connecting: ["tone-rest", "icon-spin", "Connecting"],
    reconnecting: ["tone-warn", "icon-spin", "Reconnecting"],
    stale: ["tone-warn", "icon-alert", "Stale"],
    paused: ["tone-rest", "icon-pause", "Paused"],
    ended: ["tone-bad", "icon-cross", "Ended"],
  };

  function stateNow() {
    if (ended) return "ended";
    if (paused) return "paused";
    const silence = Date.now() - heardAt;
    if (silence > DEAD_MS) return "stale";
    // A socket that opened is live once the server has said something on it.
    if (socket && socket.readyState === WebSocket.OPEN && heardAt >= openedAt) return silence > SILENT_MS ? "reconnecting" : "live";
    return openedAt ? "reconnecting" : "connecting";
  }

  function setText(node, text) {
    if (node && node.textContent !== text) node.textContent = text;
  }

  function show(action) {
    if (document.hidden) return;
    const next = stateNow();
    if (next === "stale") setText(bannerAge, ` The data is ${Math.round((Date.now() - heardAt) / 1000)} s old.`);
    if (next === state) return;
    const before = state;
    state = next;
    const [tone, icon, word] = LOOKS[state];
    stateMark.className = `live-state ${tone}`;
    stateIcon.className = `icon ${icon}`;
    setText(stateWord, word);
    pauseButton.hidden = state === "ended";
    pauseButton.setAttribute("aria-pressed", String(paused));
    pauseButton.title = paused ? "Resume live updates" : "Pause live updates";
    pauseIcon.className = paused ? "icon icon-play" : "icon icon-pause";
    if (banner) {
      const troubled = state === "stale" || state === "ended";
      setText(bannerText, state === "ended" ? ended : troubled ? "No connection to the console; trying again." : "");
      if (state === "ended") {
        bannerAge.textContent = "";
        const link = element("a", { href: location.href, textContent: action || "Reload" });
        banner.replaceChildren(bannerText, " ", link);
      }
      banner.hidden = !troubled;
    }
    if (before === "stale" && state === "live") announce("Connected again.");
  }

  // One line for screen readers. Whoever listens must not be talked over, so figures are told twice a minute at most.
  let toldAt = Date.now();
  function announce(text, { seldom = false } = {}) {
    if (still() || (seldom && Date.now() - toldAt < SELDOM_MS)) return;
    toldAt = Date.now();
    setText(summary, text);
  }

  // ---- Lists that change in place ----

  const isAt = (node) => node.matches(":hover") || node.contains(document.activeElement);

  // A parked pointer, or the focus of a table that was clicked, holds what stands above it only for so long; then "live:rest" releases it.
  let stirredAt = 0;
  let restTimer = 0;

  function stir() {
    stirredAt = Date.now();
    restTimer = restTimer || setTimeout(rest, REST_MS);
  }

  function rest() {
    const left = stirredAt + REST_MS - Date.now();
    restTimer = left > 0 ? setTimeout(rest, left) : 0;
    if (!restTimer) document.dispatchEvent(new CustomEvent("live:rest"));
  }

  for (const kind of ["pointermove", "pointerdown", "keydown", "wheel"]) addEventListener(kind, stir, { capture: true, passive: true });
  stir();

  // Whether somebody is at what stands below it in its column of Home, which moves when it grows.
  function isAtBelow(node) {
    if (!restTimer) return false;
    let one = node.closest(".board > .stack > *");
    while ((one = one?.nextElementSibling)) if (isAt(one)) return true;
    return false;
  }

  // Keeps the rows of a table body. Texts change where they stand; rows that come, go or move wait while the pointer or the focus is in the table.
  function list(body, { template, key = (item) => String(item.key), fill, button }) {
    let wanted = null;
    const rowsNow = () => new Map([...body.children].map((row) => [row.dataset.key, row]));
    // From nothing to something, or back, the page shows its note or its table at once.
    const grows = (items) => items.length && body.children.length && items.length !== body.children.length;
    const held = (items) => isAt(body) || (grows(items) && isAtBelow(body));

    function differences(items) {
      const keys = items.map(key);
      const shown = [...body.children].map((row) => row.dataset.key);
      const fresh = keys.filter((one) => !shown.includes(one)).length;
      const gone = shown.filter((one) => !keys.includes(one)).length;
      const kept = keys.filter((one) => shown.includes(one));
      const moved = kept.filter((one, number) => shown.filter((other) => keys.includes(other))[number] !== one).length;
      return fresh + gone + moved;
    }

    function arrange(items) {
      const rows = rowsNow();
      const keys = new Set(items.map(key));
      for (const [name, row] of rows) if (!keys.has(name)) row.remove();
      items.forEach((item, number) => {
        let row = rows.get(key(item));
        if (!row) {
          row = template.content.firstElementChild.cloneNode(true);
          row.dataset.key = key(item);
          if (motionIsWelcome()) {
            row.classList.add("flash");
            setTimeout(() => row.classList.remove("flash"), FLASH_MS);
          }
        }
        fill(row, item);
        if (body.children[number] !== row) body.insertBefore(row, body.children[number] || null);
      });
    }

    function settle() {
      if (wanted && !paused && !held(wanted)) applyNow();
    }

    function applyNow() {
      const items = wanted;
      wanted = null;
      if (button) button.hidden = true;
      if (items) arrange(items);
    }

    if (button) button.addEventListener("click", applyNow);
    const column = body.closest(".board > .stack");
    for (const kind of ["pointerout", "focusout"]) (column || body).addEventListener(kind, () => setTimeout(settle));
    if (column) document.addEventListener("live:rest", settle);

    return function update(items) {
      const rows = rowsNow();
      for (const item of items) {
        const row = rows.get(key(item));
        if (row) fill(row, item);
      }
      const changes = differences(items);
      wanted = changes ? items : null;
      if (changes && template && held(items)) {
        if (button) {
          setText(button, `${changes} ${changes === 1 ? "change" : "changes"} – apply`);
          button.hidden = false;
        }
      } else {
        if (button && !button.hidden) button.hidden = true;
        if (changes && template) applyNow();
      }
    };
  }

  // ---- Texts, as gpufleet/core/templatetags/shell.py writes them ----

  const THIN = "\u00a0";
  const NOTHING = "–";
  const grouped = (number) => String(number).replace(/\B(?=(\d{3})+(?!\d))/g, ",");

  function halfEven(exact) {
    const low = Math.floor(exact);
    const rest = exact - low;
    return rest > 0.5 || (rest === 0.5 && low % 2) ? low + 1 : low;
  }

  const format = {
    NOTHING,
    grouped,
    gpus(milli) {
      const part = milli % 1000 ? `.${String(milli % 1000).padStart(3, "0").replace(/0+$/, "")}` : "";
      return grouped(Math.floor(milli / 1000)) + part;
    },
    wholeGpus: (milli) => (milli > 0 && milli < 500 ? "<1" : grouped(Math.floor((milli + 500) / 1000))),
    percentOf(part, whole) {
      if (!whole) return NOTHING;
      const share = (part * 100) / whole;
      if (share > 0 && share < 1) return "<1%";
      if (share > 99 && share < 100) return ">99%";
      return `${halfEven(share)}%`;
    },
    duration: shell.duration,
    money(micros, decimals, sign) {
      const unit = 10 ** (6 - decimals);
      const whole = halfEven(micros / unit);
      const digits = String(whole).padStart(decimals + 1, "0");
      const cut = digits.length - decimals;
      return sign + grouped(digits.slice(0, cut)) + (decimals ? `.${digits.slice(cut)}` : "");
    },
  };

  // A <time> as the `moment` filter writes it; only touched when its moment changes, as shell.js keeps its words fresh.
  function setMoment(holder, at, kind = "relative") {
    const machine = new Date(at).toISOString();
    let time = holder.querySelector("time");
    if (time && time.getAttribute("datetime") === machine) return;
    if (!time) {
      time = document.createElement("time");
      time.dataset.moment = kind;
      holder.replaceChildren(time);
    }
    time.setAttribute("datetime", machine);
    shell.paintTime(time);
  }

  window.gpufleet = Object.assign(window.gpufleet || {}, {
    live: {
      isAt,
      isAtBelow,
      follow(name, page) {
        const topic = { name, page, mine: page.version, fetching: false, buffer: [], resyncs: 0 };
        topics.set(name, topic);
        if (place && place.hidden) {
          place.append(stateMark, pauseButton, summary);
          place.hidden = false;
          if (banner) banner.replaceChildren(bannerText, bannerAge);
        }
        // A page that is still joins all its topics when it comes back.
        if (!socket || socket.readyState !== WebSocket.OPEN) connect();
        else if (!still()) join(name);
        return topic;
      },
      list,
      setText,
      setMoment,
      announce,
      format,
      serverNow: shell.serverNow,
      get paused() {
        return paused;
      },
      get still() {
        return still();
      },
      refetch: (name) => refetch(name),
    },
  });
})();
