// The filter line of a list: while somebody types, it offers the list's filters and their values; what is chosen becomes a chip at once. The filters are
// those of the form below “Filter”, so this script knows no list. Without it the line takes `state:waiting team:vision` as it is written.
(() => {
  "use strict";

  const LATER_MS = 120;
  const MOST = 12;
  let timer = 0;
  let asked = 0;
  let box = null; // the list of offers, below the field that it belongs to
  let offers = [];
  let at = -1;
  let open = ""; // the popover that was open before the region came anew

  const fieldOf = (target) => target.closest?.("[data-filter-line] [data-search]");

  /** The word under the caret: where it begins, the filter's name in front of a colon, and what is typed of its value. */
  function wordAt(field) {
    const before = field.value.slice(0, field.selectionStart ?? field.value.length);
    const from = before.search(/(?:[^\s"]+|"[^"]*"?)*$/);
    const word = before.slice(from);
    const colon = word.indexOf(":");
    return { from, to: before.length, name: colon < 0 ? "" : word.slice(0, colon).toLowerCase(), typed: word.slice(colon + 1).replace(/^"|"$/g, "").toLowerCase() };
  }

  /** The fields of the form: name, label, values. */
  function filtersOf(form) {
    return [...form.querySelectorAll(".filters [name]")].filter((control) => control.name !== "size").map((control) => ({
      control,
      name: control.name,
      label: control.closest("label")?.querySelector("span")?.textContent.trim() ?? control.name,
      values: control.options ? [...control.options].filter((option) => option.value).map((option) => ({ value: option.value, label: option.label.replace(/ \(\d+\)$/, ""), chosen: option.selected })) : null,
    }));
  }

  const named = (filter, name) => filter.name.startsWith(name) || filter.label.toLowerCase().replaceAll(" ", "-").startsWith(name);

  function found(filters, word) {
    if (word.name) {
      const filter = filters.find((one) => one.name === word.name) ?? filters.find((one) => named(one, word.name));
      return filter?.values?.filter((one) => !one.chosen && (one.value.toLowerCase().includes(word.typed) || one.label.toLowerCase().includes(word.typed)))
        .map((one) => ({ filter, value: one.value, label: one.label, note: filter.label })) ?? [];
    }
    const keys = filters.filter((one) => named(one, word.typed)).map((filter) => ({ filter, label: `${filter.name}:`, note: filter.label }));
    const values = word.typed.length < 2 ? [] : filters.flatMap((filter) => (filter.values ?? [])
      .filter((one) => !one.chosen && (one.value.toLowerCase().startsWith(word.typed) || one.label.toLowerCase().startsWith(word.typed)))
      .map((one) => ({ filter, value: one.value, label: one.label, note: filter.label })));
    return [...values, ...keys];
  }

  function close(field) {
    box?.remove();
    box = null;
    offers = [];
    at = -1;
    field?.setAttribute("aria-expanded", "false");
    field?.removeAttribute("aria-activedescendant");
    field?.removeAttribute("aria-controls");
  }

  function mark(field, next) {
    at = next;
    [...box.children].forEach((option, number) => option.setAttribute("aria-selected", String(number === at)));
    if (at >= 0) field.setAttribute("aria-activedescendant", box.children[at].id);
    else field.removeAttribute("aria-activedescendant");
    box.children[at]?.scrollIntoView({ block: "nearest" });
  }

  function show(field, list) {
    if (!list.length || document.activeElement !== field) return close(field);
    if (!box?.isConnected) {
      box = document.createElement("ul");
      box.className = "finder-drop finder-list filter-offers";
      box.id = `${field.id}-offers`;
      box.setAttribute("role", "listbox");
      box.setAttribute("aria-label", "Filters");
      field.closest(".filter-words").append(box);
    }
    offers = list.slice(0, MOST);
    box.replaceChildren(...offers.map((offer, number) => {
      const option = document.createElement("li");
      option.id = `${box.id}-${number}`;
      option.className = "finder-option";
      option.setAttribute("role", "option");
      const label = document.createElement("span");
      label.className = "finder-label";
      label.textContent = offer.label;
      const note = document.createElement("span");
      note.className = "finder-note";
      note.textContent = offer.note;
      option.append(label, note);
      // Before the field loses the focus.
      option.addEventListener("mousedown", (event) => {
        event.preventDefault();
        choose(field, offer);
      });
      return option;
    }));
    field.setAttribute("aria-expanded", "true");
    field.setAttribute("aria-controls", box.id);
    mark(field, -1);
  }

  function choose(field, offer) {
    const word = wordAt(field);
    const { control, name } = offer.filter;
    const rest = [field.value.slice(0, word.from).trimEnd(), field.value.slice(word.to).trimStart()];
    if (offer.value === undefined) {
      field.setRangeText(`${name}:`, word.from, word.to, "end");
      return suggest(field);
    }
    close(field);
    field.value = rest.filter(Boolean).join(" ");
    if (control.options) {
      const option = [...control.options].find((one) => one.value === offer.value);
      if (!control.multiple && control.value && control.value !== offer.value && control.querySelectorAll("option").length > 3) control.multiple = true;
      if (control.multiple) control.options[0].selected = false;
      option.selected = true;
    } else control.value = offer.value;
    field.form.requestSubmit();
  }

  async function suggest(field) {
    const word = wordAt(field);
    const filters = filtersOf(field.form);
    const filter = word.name && filters.find((one) => one.name === word.name || named(one, word.name));
    if (!filter || filter.values || !filter.control.dataset.suggest) return show(field, found(filters, word));
    const mine = (asked += 1);
    const address = new URL(filter.control.dataset.suggest, location.href);
    address.searchParams.set("field", filter.name);
    address.searchParams.set("typed", word.typed);
    let values = [];
    try {
      const answer = await fetch(address, { headers: { Accept: "application/json" } });
      if (answer.ok) ({ values } = await answer.json());
    } catch {
      return; // without an answer the line still takes what is written
    }
    if (mine === asked && field.isConnected) show(field, values.map((value) => ({ filter, value, label: value, note: filter.label })));
  }

  function dress() {
    for (const field of document.querySelectorAll("[data-filter-line] [data-search]:not([role])")) {
      field.setAttribute("role", "combobox");
      field.setAttribute("aria-autocomplete", "list");
      field.setAttribute("aria-expanded", "false");
    }
  }
  document.addEventListener("input", (event) => {
    const field = fieldOf(event.target);
    if (!field) return;
    clearTimeout(timer);
    timer = setTimeout(() => suggest(field), LATER_MS);
  });
  document.addEventListener("focusout", (event) => fieldOf(event.target) && close(event.target));
  document.addEventListener("keydown", (event) => {
    const field = fieldOf(event.target);
    if (!field || event.isComposing) return;
    if (event.key === "ArrowDown" && !box) {
      event.preventDefault();
      suggest(field);
    } else if (box && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
      event.preventDefault();
      // Below the last and above the first no offer is marked: Enter then takes what is written.
      const places = offers.length + 1;
      mark(field, ((at + 1 + (event.key === "ArrowDown" ? 1 : -1) + places) % places) - 1);
    } else if (box && event.key === "Escape") {
      event.preventDefault();
      close(field);
    } else if (event.key === "Enter" && box && at >= 0) {
      event.preventDefault();
      choose(field, offers[at]);
    } else if (event.key === "Enter") {
      clearTimeout(timer);
      close(field);
    } else if (event.key === "Backspace" && !field.value) {
      const chips = field.form.querySelectorAll("[data-chip-remove]");
      chips[chips.length - 1]?.click();
    }
  });

  // A filter that is set in the form changes the list below at once; the form stays open.
  document.addEventListener("htmx:beforeSwap", (event) => {
    open = event.detail.target.querySelector?.(".filters:popover-open")?.id ?? "";
  });
  document.addEventListener("htmx:afterSettle", () => {
    if (open) document.getElementById(open)?.showPopover({ source: document.querySelector(`[popovertarget="${open}"]`) });
    open = "";
    dress();
  });
  dress();
})();
