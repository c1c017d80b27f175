// The shell's manners: times, theme, rows, messages, keys. Every page loads it, and every page also works without it.
(() => {
  "use strict";

  const root = document.documentElement;

  const kept = {
    get(key) {
      try {
        return localStorage.getItem(`gpufleet.${key}`);
      } catch {
        return null; // A browser that keeps nothing has the defaults.
      }
    },
    set(key, value) {
      try {
        if (value === null) localStorage.removeItem(`gpufleet.${key}`);
        else localStorage.setItem(`gpufleet.${key}`, value);
      } catch {
        // The choice then holds for this page only.
      }
    },
  };

  /* ---- Times: relative, exact on hover, in UTC or in the browser's zone ---- */

  const UNITS = [
    [86_400, "d"],
    [3_600, "h"],
    [60, "min"],
    [1, "s"],
  ];

  // The server's clock counts: a laptop that is minutes off must not show a node as seen "in 3 min".
  const skew = (Date.parse(root.dataset.now) || Date.now()) - Date.now();
  let ahead = Math.abs(skew) > 2_000 ? skew : 0;
  const serverNow = () => Date.now() + ahead;
  /** A live page hears the server's time with every beat, which is truer than what the page was sent with. */
  function setServerTime(milliseconds) {
    ahead = milliseconds - Date.now();
  }

  const LATE_S = 120; // so long what is due may come at any moment
  const SOON_S = 5; // nearer than this no number is told
  const counted = (count, unit) => `${count.toLocaleString("en")}\u00a0${unit}`;

  // The two largest units, as gpufleet/core/templatetags/shell.py and the command line write them.
  function duration(seconds) {
    let left = Math.floor(seconds);
    if (left < 60) return counted(left, "s");
    const parts = [];
    for (const [size, unit] of UNITS.slice(0, -1)) {
      const count = Math.floor(left / size);
      left %= size;
      if (count || parts.length) parts.push([count, unit]);
    }
    return parts.slice(0, 2).filter(([count]) => count).map(([count, unit]) => counted(count, unit)).join(" ");
  }

  // What is past is told in one unit, rounded down. Somebody waits for what is to come: two units, and never sooner than it is.
  function relative(moment) {
    const gone = (serverNow() - moment) / 1000;
    if (gone < 0) {
      const left = Math.ceil(-gone);
      if (left < SOON_S) return "in a moment";
      const step = left < 60 ? 1 : left <= 86400 ? 60 : 3600;
      return `in ${duration(Math.ceil(left / step) * step)}`;
    }
    if (gone < SOON_S) return "just now";
    const [size, unit] = UNITS.find(([size]) => gone >= size);
    return `${counted(Math.floor(gone / size), unit)} ago`;
  }

  // How a predicted start stands, as gpufleet/core/templatetags/shell.py says it.
  function starts(moment, { from, until } = {}) {
    const late = Math.floor((serverNow() - moment) / 1000);
    if (late < 0) return `starts ${(until && windowTold(new Date(from), new Date(until))) || relative(moment)}`;
    return late <= LATE_S ? "starts any moment" : `late by ${duration(Math.floor(late / 60) * 60)}`;
  }

  // `14:10–15:30`; `by 15:30` once its beginning is past. Empty where it is over or has no length.
  function windowTold(...window) {
    const utc = root.dataset.clock === "utc";
    const [earliest, latest, now] = [...window, new Date(serverNow())].map((moment) => {
      const shape = { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hourCycle: "h23", ...(utc && { timeZone: "UTC" }) };
      const parts = Object.fromEntries(new Intl.DateTimeFormat("en-US", shape).formatToParts(moment).map(({ type, value }) => [type, value]));
      return { at: Math.floor(moment / 60_000), day: `${parts.day}\u00a0${parts.month}`, clock: `${parts.hour}:${parts.minute}` };
    });
    if (earliest.at >= latest.at || latest.at <= now.at) return "";
    const told = (one, beside) => (one.day === beside.day ? one.clock : `${one.day}\u00a0${one.clock}`);
    const words = earliest.at <= now.at ? `by ${told(latest, now)}` : `${told(earliest, now)}–${told(latest, earliest)}`;
    return utc ? `${words}\u00a0UTC` : words;
  }

  function absolute(moment, timeStyle = "medium") {
    const utc = root.dataset.clock === "utc";
    const shape = { dateStyle: "short", timeStyle, ...(utc && { timeZone: "UTC" }) };
    const text = new Intl.DateTimeFormat("sv-SE", shape).format(moment); // Sweden writes 2026-11-20 14:03:22, as logs do.
    if (utc) return `${text} UTC`;
    const parts = new Intl.DateTimeFormat("en-GB", { timeZoneName: "short" }).formatToParts(moment);
    return `${text} ${parts.find((part) => part.type === "timeZoneName").value}`;
  }

  function paintTime(time) {
    const moment = new Date(time.dateTime);
    if (Number.isNaN(moment.getTime())) return;
    const { from, until } = time.dataset;
    const exact = until ? `${absolute(moment)}, between ${absolute(new Date(from))} and ${absolute(new Date(until))}` : absolute(moment);
    const forms = {
      absolute: () => exact,
      minute: () => absolute(moment, "short"),
      // What was expected earlier is so at any moment.
      start: () => starts(moment, time.dataset),
      ahead: () => (moment <= serverNow() ? "any moment" : relative(moment)),
      for: () => relative(moment).replace(/^(.*) ago$/, "for $1"),
    };
    const text = (forms[time.dataset.moment] ?? relative)(moment);
    // Only what differs is touched, so that nothing is announced or drawn again for nothing.
    if (time.textContent !== text) time.textContent = text;
    if (time.title !== exact) time.title = exact;
  }
  function paintTimes(within = document) {
    within.querySelectorAll("time[data-moment]").forEach(paintTime);
  }

  const isPaused = () => root.hasAttribute("data-paused") || document.hidden;
  setInterval(() => isPaused() || paintTimes(), 5_000);
  document.addEventListener("visibilitychange", () => isPaused() || paintTimes());
  document.addEventListener("htmx:afterSettle", (event) => paintTimes(event.target));

  const clocks = [...document.querySelectorAll("[data-clock-switch]")];
  function showClock(utc) {
    root.dataset.clock = utc ? "utc" : "local";
    for (const button of clocks.map((form) => form.querySelector("button"))) {
      button.value = utc ? "0" : "1"; // What the next press asks for, also for a form that is sent without this script.
      button.setAttribute("aria-pressed", String(utc));
    }
    paintTimes();
    document.dispatchEvent(new CustomEvent("gpufleet:clock"));
  }
  async function switchClock() {
    const utc = root.dataset.clock !== "utc";
    const body = new FormData(clocks[0]);
    body.set("utc", utc ? "1" : "0");
    showClock(utc);
    try {
      const answer = await fetch(clocks[0].action, { method: "POST", body, headers: { "X-Requested-With": "fetch" } });
      if (!answer.ok) throw new Error(`status ${answer.status}`);
    } catch {
      showClock(!utc);
      say("Your choice of clock could not be saved. Try again when the console answers.");
    }
  }
  for (const form of clocks) {
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      switchClock();
    });
  }

  /* ---- Theme and rows ---- */

  const THEME_ICONS = { system: "theme", light: "sun", dark: "moon" };
  const themeButtons = [...document.querySelectorAll("[data-theme-switch]")];
  const themeNow = () => root.dataset.theme || "system";

  function showTheme() {
    const words = `Theme: ${{ system: "as the system", light: "light", dark: "dark" }[themeNow()]}`;
    for (const button of themeButtons) {
      const spelled = button.querySelector("[data-theme-word]");
      if (spelled) spelled.textContent = words;
      else button.setAttribute("aria-label", words);
      button.title = words;
      button.querySelector(".icon").className = `icon icon-${THEME_ICONS[themeNow()]}`;
    }
  }
  function setTheme(theme) {
    if (theme === "system") delete root.dataset.theme;
    else root.dataset.theme = theme;
    kept.set("theme", theme === "system" ? null : theme);
    showTheme();
    // Drawings (fleet map, charts) have no style sheet: they listen and draw again.
    document.dispatchEvent(new CustomEvent("gpufleet:theme"));
  }
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  function nextTheme() {
    // From the system's theme the first step goes to the other one: a press that changes nothing looks broken.
    const round = prefersDark.matches ? ["system", "light", "dark"] : ["system", "dark", "light"];
    setTheme(round[(round.indexOf(themeNow()) + 1) % round.length]);
  }
  themeButtons.forEach((button) => button.addEventListener("click", nextTheme));
  prefersDark.addEventListener("change", () => document.dispatchEvent(new CustomEvent("gpufleet:theme")));

  function switchDensity() {
    const airy = root.dataset.density !== "airy";
    if (airy) root.dataset.density = "airy";
    else delete root.dataset.density;
    kept.set("density", airy ? "airy" : null);
  }

  /* ---- Messages ---- */

  const spoken = document.createElement("p");
  spoken.className = "unseen";
  spoken.setAttribute("role", "status");
  document.body.append(spoken);

  function iconOf(name) {
    const icon = document.createElement("i");
    icon.className = `icon icon-${name}`;
    icon.setAttribute("aria-hidden", "true");
    return icon;
  }
  function makeDismissible(alert) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "btn-icon close";
    button.setAttribute("aria-label", "Dismiss");
    button.append(iconOf("close"));
    button.addEventListener("click", () => alert.remove());
    alert.append(button);
  }
  function say(text) {
    spoken.textContent = text;
    const alert = document.createElement("div");
    alert.className = "alert alert-warn toast";
    const words = document.createElement("p");
    words.textContent = text;
    alert.append(words);
    makeDismissible(alert);
    document.body.append(alert);
  }
  document.querySelectorAll("[data-dismissible]").forEach(makeDismissible);

  /* ---- Lists that are fetched anew: the focus stays where it was, and the new count is said ---- */

  let held = null;
  document.addEventListener("htmx:beforeSwap", (event) => {
    const detail = event.detail;
    if (detail.xhr?.status === 422 && detail.target.id === "change-preview") {
      // A preview of what cannot be made says so: the one before it would be taken for it.
      detail.shouldSwap = true;
      detail.isError = false;
    }
    const focused = document.activeElement;
    held = event.detail.target.contains(focused) ? { tag: focused.tagName, name: focused.name, text: focused.textContent.trim() } : null;
  });
  document.addEventListener("htmx:afterSettle", (event) => {
    const region = event.target;
    // Whoever has gone on to something else meanwhile stays there.
    if (held && [null, document.body].includes(document.activeElement)) {
      const { tag, name, text } = held;
      const same = (element) => (name ? element.name === name : element.textContent.trim() === text);
      [...region.querySelectorAll(tag)].find(same)?.focus({ preventScroll: true });
    }
    held = null;
    const count = region.querySelector(".pager-extent, .empty p");
    if (count) spoken.textContent = count.textContent;
  });

  /* ---- Tables that fit scroll with the page, under their head; those that do not scroll sideways, and their edge says so ---- */

  const fitting = new ResizeObserver((entries) => entries.forEach(({ target }) => fit(target.closest(".table-wrap") ?? target)));
  function fit(wrap) {
    const table = wrap.querySelector("table");
    if (!table) return;
    wrap.classList.remove("fits");
    const fits = wrap.scrollWidth <= wrap.clientWidth + 1;
    wrap.classList.toggle("fits", fits);
    wrap.classList.toggle("more-aside", !fits && wrap.scrollLeft + wrap.clientWidth < wrap.scrollWidth - 1);
    if (fits) wrap.removeAttribute("tabindex");
    else wrap.tabIndex = 0;
  }
  function watchTables(within = document) {
    const wraps = [...within.querySelectorAll("main .table-wrap")].filter((wrap) => !wrap.dataset.watched);
    for (const wrap of wraps) {
      wrap.dataset.watched = "";
      fitting.observe(wrap);
      wrap.addEventListener("scroll", () => wrap.classList.contains("fits") || fit(wrap), { passive: true });
    }
  }
  document.addEventListener("htmx:afterSettle", () => watchTables());

  /* ---- The rest of a head's buttons: it closes as menus do ---- */

  document.addEventListener("click", (event) => {
    for (const more of document.querySelectorAll("details.more[open]")) if (!more.contains(event.target)) more.open = false;
  });
  document.addEventListener("keydown", (event) => {
    const more = event.key === "Escape" && event.target.closest("details.more[open]");
    if (!more) return;
    more.open = false;
    more.querySelector("summary").focus();
  });

  /* ---- Copying what is shown once, such as a new token ---- */

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    try {
      await navigator.clipboard.writeText(document.querySelector(button.dataset.copy).textContent.trim());
      spoken.textContent = "Copied";
      button.classList.add("is-done");
      setTimeout(() => button.classList.remove("is-done"), 1_500);
    } catch {
      say("The browser does not let this page copy. Select the text and copy it yourself.");
    }
  });

  /* ---- Keys. Single letters can be switched off (WCAG 2.1.4), for those who speak to their computer ---- */

  const shortcuts = document.getElementById("shortcuts");
  const letters = document.querySelector("[data-single-keys]");
  const lettersOn = () => kept.get("keys") !== "off";
  if (letters) {
    letters.checked = lettersOn();
    letters.addEventListener("change", () => kept.set("keys", letters.checked ? null : "off"));
  }
  document.querySelectorAll("[data-show-shortcuts]").forEach((button) => button.addEventListener("click", showShortcuts));
  function showShortcuts() {
    document.getElementById("person-menu")?.hidePopover();
    shortcuts?.showModal();
  }

  function isTyping(event) {
    return event.target.closest("input:not([type=checkbox], [type=radio]), textarea, select, [contenteditable]") !== null;
  }

  /** To the next or previous row of any list of the page, or to the first row of the next or previous list; from elsewhere to the first row. */
  function stepRow(step, byList) {
    const own = document.activeElement.closest("table.grid");
    // A sheet beside the list is not part of it.
    const tables = own?.closest("#sheet") ? [own] : document.querySelectorAll("main table.grid:not(#sheet table)");
    const rows = [...tables].flatMap((table) => [...table.querySelectorAll("tbody tr")]).filter((row) => row.querySelector("a, button") && row.checkVisibility());
    const listOf = (row) => row.closest("table");
    const firsts = rows.filter((row, at) => !at || listOf(row) !== listOf(rows[at - 1]));
    const row = document.activeElement.closest("tr");
    const among = byList ? firsts : rows;
    const at = among.indexOf(byList ? firsts.find((first) => listOf(first) === own) : row);
    const next = among[at < 0 ? 0 : Math.min(among.length - 1, Math.max(0, at + step))];
    next?.querySelector("a, button").focus();
    next?.scrollIntoView({ block: "nearest" });
  }

  const TAB_PEEK = 24;
  let going = 0; // When "g" was pressed, for the letter that follows it.
  function goTo(letter) {
    const link = document.querySelector(`#places a[data-key="${CSS.escape(letter)}"]`);
    if (link) link.click();
    return Boolean(link);
  }

  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || isTyping(event) || !lettersOn()) return;
    if (document.querySelector("dialog[open]")) return;
    const afterG = performance.now() - going < 1_200 && going > 0;
    going = 0;
    if (afterG && goTo(event.key)) event.preventDefault();
    else if (event.key === "g") going = performance.now();
    else if (event.key === "?") showShortcuts();
    else if (/^[jk]$/i.test(event.key)) stepRow(event.key.toLowerCase() === "j" ? 1 : -1, event.shiftKey);
  });

  /** Where a row of tabs has no room for all, the current one is in sight, and that others follow. */
  function showCurrentTabs() {
    for (const tab of document.querySelectorAll(".tabs [aria-current]")) {
      const row = tab.closest(".tabs");
      const over = tab.getBoundingClientRect().right - row.getBoundingClientRect().right;
      if (over > 0) row.scrollLeft += over + TAB_PEEK;
    }
  }

  window.gpufleet = Object.assign(window.gpufleet || {}, {
    shell: { duration, kept, iconOf, lettersOn, isTyping, nextTheme, paintTime, say, serverNow, setServerTime, setTheme, showShortcuts, switchClock, switchDensity, watchTables },
  });
  showTheme();
  paintTimes();
  watchTables();
  showCurrentTabs();
})();
