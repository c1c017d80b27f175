// Going anywhere: the search field of the shell, and the palette on Ctrl-K. Both are the same combobox over the same list of answers.
(() => {
  "use strict";

  const { iconOf, isTyping, lettersOn, nextTheme, showShortcuts, switchClock, switchDensity } = window.gpufleet.shell;
  const form = document.querySelector("form.quick");
  if (!form) return;

  /* ---- What can be chosen ---- */

  function places() {
    return [...document.querySelectorAll("#places [data-place], #person-menu a")].map((link) => ({ label: link.textContent.trim(), note: link.dataset.section, icon: link.dataset.icon, url: link.href, key: link.dataset.key && `g ${link.dataset.key}` }));
  }
  function actions() {
    return [
      { label: "Switch theme: system, light, dark", icon: "theme", run: nextTheme },
      { label: "Switch between UTC and local time", icon: "clock", run: switchClock },
      { label: "Switch between dense and airy rows", icon: "columns", run: switchDensity },
      { label: "Keyboard shortcuts", icon: "keyboard", run: showShortcuts, key: "?" },
    ];
  }

  /** What can be done with the thing at hand: what the head of the open sheet offers, else that of the page. */
  function verbs() {
    const sheet = document.querySelector("#sheet:not([hidden])");
    const head = sheet ?? document.querySelector("main .page-head");
    const name = (head?.querySelector(sheet ? ".sheet-told" : "h1")?.textContent ?? "").trim();
    const found = [...(head?.querySelectorAll(".actions :is(a[href], button:not(:disabled))") ?? [])];
    return found.map((one) => ({ label: one.textContent.trim(), note: name, url: one.href, run: () => one.click() }));
  }

  /** The id of the thing in the row that has the focus. An open sheet is about the same row, and has its verbs. */
  function rowAtHand() {
    if (document.querySelector("#sheet:not([hidden])")) return "";
    const links = document.activeElement?.closest("main tbody tr")?.querySelectorAll("th a[href]") ?? [];
    return [...links].map((link) => /^\/(?:jobs|nodes|quotas)\/([a-z]+-[^/]+)\/$/.exec(link.pathname)?.[1]).find(Boolean) ?? "";
  }

  /** Every word that was typed begins a word of the label. */
  function matches(label, query) {
    const words = label.toLowerCase().split(/[^\p{L}\p{N}]+/u);
    return query.toLowerCase().split(/\s+/).filter(Boolean).every((part) => words.some((word) => word.startsWith(part)));
  }

  async function found(query, at, signal) {
    const answer = await fetch(`${form.dataset.suggest}?${new URLSearchParams({ q: query, at })}`, { signal, headers: { Accept: "application/json" } });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    return (await answer.json()).groups;
  }

  /* ---- The combobox ---- */

  let count = 0;
  class Finder {
    /** `input` is where one types, `box` where the answers appear. `always`: also before anything is typed. */
    constructor(input, box, { always = false, close }) {
      Object.assign(this, { input, box, always, close, at: "", id: `finder-${++count}`, options: [], active: -1, running: null });
      this.list = document.createElement("div");
      this.list.id = this.id;
      this.list.className = "finder-list";
      this.list.setAttribute("role", "listbox");
      this.list.setAttribute("aria-label", "Answers");
      this.state = document.createElement("p");
      this.state.className = "finder-state";
      this.state.setAttribute("role", "status");
      box.append(this.list, this.state);
      for (const [name, value] of Object.entries({ role: "combobox", "aria-controls": this.id, "aria-expanded": "false", "aria-autocomplete": "list" })) input.setAttribute(name, value);
      input.addEventListener("input", () => this.ask());
      input.addEventListener("keydown", (event) => this.onKey(event));
      this.list.addEventListener("mousedown", (event) => event.preventDefault()); // The field keeps the focus.
      this.list.addEventListener("click", (event) => this.choose(this.options.findIndex(({ element }) => element.contains(event.target)), event));
    }

    ask() {
      const query = this.input.value.trim();
      this.running?.abort();
      clearTimeout(this.waiting);
      if (!query && !this.always) {
        this.hide();
        return;
      }
      const own = [
        { label: "Here", items: this.always ? verbs().filter((item) => matches(`${item.label} ${item.note}`, query)) : [] },
        { label: "Pages", items: places().filter((item) => matches(item.label, query)) },
        { label: "Actions", items: this.always || query ? actions().filter((item) => matches(item.label, query)) : [] },
      ];
      this.show(own, query.length > 1 ? "Searching…" : "");
      if (query.length < 2) return;
      this.waiting = setTimeout(async () => {
        this.running = new AbortController();
        try {
          const groups = await found(query, this.at, this.running.signal);
          this.show([...groups, ...own], "");
        } catch (fault) {
          if (fault.name !== "AbortError") this.show(own, "The search does not answer. Press Enter for the search page.");
        }
      }, 120);
    }

    show(groups, state) {
      const chosen = this.options[this.active]?.item;
      this.list.replaceChildren();
      this.options = [];
      for (const { label, items } of groups.filter(({ items }) => items.length)) {
        const group = document.createElement("div");
        const head = document.createElement("div");
        group.setAttribute("role", "group");
        group.setAttribute("aria-labelledby", `${this.id}-${label}`);
        head.id = `${this.id}-${label}`;
        head.className = "finder-head";
        head.textContent = label;
        group.append(head, ...items.map((item) => this.option(item)));
        this.list.append(group);
      }
      const nothing = this.options.length === 0;
      this.state.textContent = state || (nothing ? "Nothing found." : "");
      // What was chosen stays chosen while answers arrive; otherwise the palette offers the first, so that Enter goes there.
      const again = this.options.findIndex(({ item }) => chosen && item.label === chosen.label && item.url === chosen.url);
      this.box.hidden = false;
      this.input.setAttribute("aria-expanded", String(!nothing));
      this.point(again >= 0 ? again : this.always && !nothing ? 0 : -1);
    }

    option(item) {
      const element = document.createElement("div");
      element.id = `${this.id}-option-${this.options.length}`;
      element.className = "finder-option";
      element.setAttribute("role", "option");
      const label = document.createElement("span");
      label.className = "finder-label";
      label.textContent = item.label;
      element.append(iconOf(item.icon || "right"), label);
      if (item.note) {
        const note = document.createElement("span");
        note.className = "finder-note";
        note.textContent = item.note;
        element.append(note);
      }
      if (item.key) {
        const key = document.createElement("kbd");
        key.textContent = item.key;
        element.append(key);
      }
      this.options.push({ element, item });
      return element;
    }

    point(index) {
      this.options[this.active]?.element.removeAttribute("aria-selected");
      this.active = index;
      const element = this.options[index]?.element;
      element?.setAttribute("aria-selected", "true");
      element?.scrollIntoView({ block: "nearest" });
      if (element) this.input.setAttribute("aria-activedescendant", element.id);
      else this.input.removeAttribute("aria-activedescendant");
    }

    onKey(event) {
      const last = this.options.length - 1;
      const moves = { ArrowDown: this.active >= last ? 0 : this.active + 1, ArrowUp: this.active <= 0 ? last : this.active - 1 };
      if (event.key in moves && !this.box.hidden && last >= 0) {
        event.preventDefault();
        this.point(moves[event.key]);
      } else if (event.key === "ArrowDown" && this.box.hidden) {
        event.preventDefault();
        this.ask();
      } else if (event.key === "Enter" && this.active >= 0 && !this.box.hidden) {
        event.preventDefault();
        this.choose(this.active, event);
      } else if (event.key === "Escape" && !this.box.hidden && !this.always) {
        event.preventDefault();
        this.hide();
      }
    }

    choose(index, event) {
      const item = this.options[index]?.item;
      if (!item) return;
      this.hide();
      this.close?.();
      if (item.url && (event.ctrlKey || event.metaKey)) window.open(item.url, "_blank", "noopener");
      else if (item.run) item.run();
      else location.assign(item.url);
    }

    hide() {
      this.running?.abort();
      clearTimeout(this.waiting);
      if (!this.always) this.box.hidden = true;
      this.input.setAttribute("aria-expanded", "false");
      this.point(-1);
    }
  }

  /* ---- The field in the top bar ---- */

  const field = form.querySelector("input[type=search]");
  const drop = document.createElement("div");
  drop.className = "finder-drop";
  drop.hidden = true;
  form.append(drop);
  const inField = new Finder(field, drop, { close: () => field.blur() });
  form.addEventListener("focusout", (event) => form.contains(event.relatedTarget) || inField.hide());

  /* ---- The palette ---- */

  const palette = document.createElement("dialog");
  palette.className = "palette";
  palette.setAttribute("aria-label", "Go anywhere");
  const bar = document.createElement("form");
  bar.action = form.action;
  bar.className = "palette-bar";
  const words = document.createElement("input");
  Object.assign(words, { type: "text", name: "q", autocomplete: "off", spellcheck: false, maxLength: 100, placeholder: "Go to a page, a node, a job, a team… or “drain dgx-3”" });
  words.setAttribute("aria-label", "Go to or search for");
  bar.append(iconOf("search"), words);
  const answers = document.createElement("div");
  answers.className = "palette-answers";
  palette.append(bar, answers);
  document.body.append(palette);
  const inPalette = new Finder(words, answers, { always: true, close: () => palette.close() });
  palette.addEventListener("click", (event) => event.target === palette && palette.close());

  function openPalette() {
    if (palette.open) return;
    words.value = "";
    inPalette.at = rowAtHand();
    palette.showModal();
    words.focus();
    inPalette.ask();
  }

  document.addEventListener("keydown", (event) => {
    const command = (event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey && event.key.toLowerCase() === "k";
    if (command) {
      event.preventDefault(); // Browsers keep Ctrl-K for their own search bar.
      if (!document.querySelector("dialog[open]")) openPalette();
    } else if (event.key === "/" && lettersOn() && !event.ctrlKey && !event.metaKey && !event.altKey && !isTyping(event) && !document.querySelector("dialog[open]")) {
      event.preventDefault();
      field.focus();
      field.select();
    }
  });
})();
