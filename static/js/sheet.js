// A row of a list opens beside the list: Enter or a click on its name. j and k go on to the next rows, Esc closes, o opens the page itself.
//
// The sheet shows the parts of the row's own page that have `data-sheet`. Without this script, and on a narrow window, the name is a plain link.
// The address keeps what is open (`#open=/jobs/j-17/`), so that it can be sent to somebody.
(() => {
  "use strict";

  const { shell } = window.gpufleet;
  const OPENS = /^\/(jobs|nodes|gpus|quotas)\/[a-z]+-[^/]+\/$/;
  const NAMES = "main .table-region tbody th a[href]";
  const AGAIN_MS = 10_000;
  const wide = matchMedia("(width >= 64rem)");
  const mark = "#open=";

  let sheet = null;
  let open = "";
  let timer = 0;
  let asked = 0;

  const opens = (link) => link.origin === location.origin && OPENS.test(link.pathname) && !link.search;
  const linkOf = (address) => [...document.querySelectorAll(NAMES)].find((link) => link.pathname === address);

  function made() {
    const aside = document.createElement("aside");
    aside.className = "sheet";
    aside.id = "sheet";
    aside.hidden = true;
    aside.innerHTML = '<header class="sheet-head"><div class="sheet-title" role="status"><h2 class="sheet-told"></h2></div><a class="btn btn-small" data-sheet-page title="Open page (o)" aria-keyshortcuts="o">Open page</a></header><div class="sheet-body" tabindex="0" role="region" aria-label="Details"></div>';
    const close = document.createElement("button");
    close.type = "button";
    close.className = "btn-icon";
    close.title = "Close (Esc)";
    close.setAttribute("aria-label", "Close");
    close.append(shell.iconOf("close"));
    close.addEventListener("click", shut);
    aside.querySelector(".sheet-head").append(close);
    document.getElementById("main").append(aside);
    return aside;
  }

  // Nothing in the sheet may have a name that the list has: ids, and the marks by which parts and rows are kept up to date.
  function renamed(part, address) {
    for (const node of [part, ...part.querySelectorAll("*")]) {
      if (node.id) node.id = `sheet-${node.id}`;
      for (const name of ["aria-labelledby", "aria-describedby", "for", "aria-controls"]) {
        const value = node.getAttribute(name);
        if (value) node.setAttribute(name, value.split(" ").map((id) => `sheet-${id}`).join(" "));
      }
      for (const name of ["data-part", "data-part-quiet", "data-again", "data-key", "data-rows", "data-apply"]) node.removeAttribute(name);
    }
    // What leads elsewhere in the row's page leads there: only some of it is here.
    for (const link of part.querySelectorAll("a:is([href^='#'], [href^='?'])")) link.setAttribute("href", address + link.getAttribute("href"));
    // The head of the sheet says the name.
    for (const said of part.querySelectorAll(".crumbs, h1")) said.remove();
    return part;
  }

  function dress(page) {
    for (const link of page.querySelectorAll('link[rel="stylesheet"]')) {
      if (!document.querySelector(`link[href="${CSS.escape(link.getAttribute("href"))}"]`)) document.head.append(document.importNode(link, true));
    }
  }

  function markRow() {
    for (const row of document.querySelectorAll("tr.is-open")) row.classList.remove("is-open");
    linkOf(open)?.closest("tr").classList.add("is-open");
  }

  async function show(address, { again = false } = {}) {
    clearTimeout(timer);
    sheet ??= made();
    open = address;
    asked += 1;
    const mine = asked;
    markRow();
    let page = null;
    try {
      const answer = await fetch(address, { headers: { Accept: "text/html" }, cache: "no-store" });
      if (answer.ok) page = new DOMParser().parseFromString(await answer.text(), "text/html");
    } catch {
      // The network is away; live.js says so, and the sheet is asked for again.
    }
    if (mine !== asked || open !== address) return;
    if (page) {
      const body = sheet.querySelector(".sheet-body");
      if (!again || !body.contains(document.activeElement)) {
        const parts = [...page.querySelectorAll("#main [data-sheet]")].filter((part) => !part.hidden);
        const kept = body.scrollTop;
        dress(page);
        body.replaceChildren(...parts.map((part) => renamed(document.importNode(part, true), address)));
        body.querySelectorAll("time[data-moment]").forEach(shell.paintTime);
        body.scrollTop = again ? kept : 0;
      }
      sheet.querySelector("[data-sheet-page]").href = address;
      if (!again) sheet.querySelector(".sheet-told").textContent = page.querySelector("h1")?.textContent ?? address;
      sheet.hidden = false;
      document.body.classList.add("has-sheet");
      history.replaceState(history.state, "", `${location.pathname}${location.search}${mark}${address}`);
    } else if (!again) {
      location.assign(address);
      return;
    }
    later();
  }

  // A page that stands still asks for nothing.
  function later() {
    const isStill = () => document.hidden || document.documentElement.hasAttribute("data-paused");
    timer = setTimeout(() => (isStill() ? later() : show(open, { again: true })), AGAIN_MS);
  }

  function shut() {
    clearTimeout(timer);
    asked += 1;
    const link = linkOf(open);
    open = "";
    sheet.hidden = true;
    document.body.classList.remove("has-sheet");
    markRow();
    history.replaceState(history.state, "", location.pathname + location.search);
    link?.focus();
  }

  document.addEventListener("click", (event) => {
    if (event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey || !wide.matches) return;
    const link = event.target.closest(NAMES);
    if (!link || !opens(link)) return;
    event.preventDefault();
    show(link.pathname);
  });

  // j and k move the focus (shell.js); an open sheet follows it.
  document.addEventListener("focusin", (event) => {
    if (!open || sheet.hidden) return;
    const link = event.target.closest("main .table-region tbody tr")?.querySelector("th a[href]");
    if (link && opens(link) && link.pathname !== open) show(link.pathname);
  });

  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || event.defaultPrevented || !open || shell.isTyping(event) || document.querySelector("dialog[open], :popover-open")) return;
    event.preventDefault();
    shut();
  });

  // After "g" the same letter goes to Home (shell.js).
  document.addEventListener("keydown", (event) => {
    if (event.key !== "o" || event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || !open || sheet.hidden) return;
    if (shell.isTyping(event) || !shell.lettersOn() || document.querySelector("dialog[open], :popover-open")) return;
    location.assign(open);
  });

  document.addEventListener("htmx:afterSettle", () => open && markRow());

  const first = location.hash.startsWith(mark) ? location.hash.slice(mark.length) : "";
  if (OPENS.test(first)) {
    if (wide.matches) show(first);
    else location.replace(first);
  }
})();
