// What a filter could be, while somebody types in it: a field with `data-suggest` asks that address and offers the answers as the browser does, each
// with its label where the answer has `labels`.
// Without scripts, or without an answer, it is a field like any other.
(() => {
  "use strict";

  const LATER_MS = 120;
  let timer = 0;
  let asked = 0;

  function listOf(field) {
    const id = `suggested-${field.name}`;
    let list = document.getElementById(id);
    if (!list) {
      list = document.createElement("datalist");
      list.id = id;
      field.after(list);
      field.setAttribute("list", id);
    }
    return list;
  }

  async function suggest(field) {
    const mine = (asked += 1);
    const address = new URL(field.dataset.suggest, window.location.href);
    address.searchParams.set("field", field.name);
    address.searchParams.set("typed", field.value);
    let values, labels;
    try {
      const answer = await fetch(address, { headers: { Accept: "application/json" } });
      if (!answer.ok) return;
      ({ values, labels } = await answer.json());
    } catch {
      return; // nobody is to be told that there is nothing to offer
    }
    if (mine !== asked || !field.isConnected) return;
    listOf(field).replaceChildren(
      ...values.map((value, number) => Object.assign(document.createElement("option"), { value, ...(labels && { label: labels[number] }) })),
    );
  }

  function later(event, wait) {
    const field = event.target.closest?.("input[data-suggest]");
    if (!field) return;
    window.clearTimeout(timer);
    timer = window.setTimeout(() => suggest(field), wait);
  }

  document.addEventListener("focusin", (event) => later(event, 0));
  document.addEventListener("input", (event) => later(event, LATER_MS));
})();
