// The quota editor: branches unfold in place, cells are edited in place, and edits are kept here, to be undone, until they are sent as one change.
(() => {
  "use strict";

  const form = document.querySelector("[data-editor]");
  const body = document.querySelector("table.editor tbody");
  if (!form || !body) return;
  const undoButton = form.querySelector("[data-undo]");
  const sendButton = form.querySelector("[type=submit]");
  const count = form.querySelector("[data-count]");
  let edits = []; // {node, field, before, after}, the oldest first

  const milli = (text) => {
    const plain = text.replace(/[,\s]/g, "").toLowerCase();
    return /^\d+(\.\d{1,3})?$/.test(plain) ? Math.round(Number(plain) * 1000) : null;
  };

  // What a text means for a field; undefined: it can't be read.
  function read(field, text) {
    const word = text.trim().toLowerCase();
    if (field.endsWith("guaranteed_milli")) return word === "unlimited" ? null : (milli(word || "0") ?? undefined);
    if (field.endsWith("limit_milli")) return word === "" || word === "none" ? null : (milli(word) ?? undefined);
    return /^\d{1,9}$/.test(word) ? Number(word) : undefined;
  }

  function written(field, value) {
    if (value === null) return field.endsWith("limit_milli") ? "none" : "unlimited";
    return field.endsWith("_milli") ? (value / 1000).toLocaleString("en", { maximumFractionDigits: 3 }) : String(value);
  }

  const cellOf = (node, field) => document.getElementById(node)?.querySelector(`[data-field="${CSS.escape(field)}"]`);

  // What a cell shows: the last edit of it, or what the tree says.
  function show(node, field) {
    const cell = cellOf(node, field);
    if (!cell) return;
    const last = edits.findLast((edit) => edit.node === node && edit.field === field);
    const text = last ? written(field, last.after) : cell.dataset.value;
    cell.textContent = text;
    cell.classList.toggle("changed", text !== cell.dataset.value);
  }

  function wanted() {
    const nodes = new Map();
    for (const { node, field, after } of edits) {
      const set = nodes.get(node) ?? {};
      const [first, ...rest] = field.split(".");
      if (first === "shares") {
        const name = rest.pop();
        set.shares ??= {};
        set.shares[rest.join(".")] = { ...set.shares[rest.join(".")], [name]: after };
      } else set[first] = after;
      nodes.set(node, set);
    }
    return [...nodes].map(([node, set]) => ({ op: "update", node, set }));
  }

  const seen = {};
  function told() {
    const nodes = new Set(edits.map((edit) => edit.node)).size;
    count.textContent = edits.length ? `${edits.length} ${edits.length === 1 ? "edit" : "edits"} of ${nodes} ${nodes === 1 ? "node" : "nodes"}` : "No edits";
    undoButton.disabled = sendButton.disabled = !edits.length;
  }

  function put(node, field, after) {
    seen[node] ??= Number(document.getElementById(node).dataset.revision);
    edits.push({ node, field, after });
    show(node, field);
    told();
  }

  function undo() {
    const last = edits.pop();
    if (!last) return;
    show(last.node, last.field);
    told();
    cellOf(last.node, last.field)?.focus();
  }

  function edit(cell, typed) {
    const node = cell.closest("tr").id;
    const { field } = cell.dataset;
    const input = document.createElement("input");
    input.type = "text";
    input.size = 8;
    input.className = "cell-input";
    input.value = typed ?? cell.textContent;
    input.setAttribute("aria-label", cell.getAttribute("aria-label"));
    cell.hidden = true;
    cell.after(input);
    input.focus();
    if (typed === undefined) input.select();
    let over = false;
    function end(keep, step) {
      if (over) return;
      const value = read(field, input.value);
      if (keep && value === undefined) {
        input.setAttribute("aria-invalid", "true");
        input.setCustomValidity(field.endsWith("_milli") ? "Write a number such as 8 or 0.5." : "Write a whole number.");
        input.reportValidity();
        return;
      }
      over = true;
      input.remove();
      cell.hidden = false;
      if (keep && written(field, value) !== cell.textContent) put(node, field, value);
      if (step !== undefined) (move(cell, step, 0) ?? cell).focus();
    }
    input.addEventListener("keydown", (event) => {
      event.stopPropagation();
      if (event.key === "Enter") { event.preventDefault(); end(true, 1); }
      else if (event.key === "Escape") end(false, 0);
      else if (event.key === "Tab") end(true);
      else input.setCustomValidity("");
    });
    input.addEventListener("blur", () => end(read(field, input.value) !== undefined));
  }

  // The cell so many rows below, or so many cells to the right.
  function move(cell, down, right) {
    const row = cell.closest("tr");
    const cells = [...row.querySelectorAll(".cell")];
    if (right) return cells[cells.indexOf(cell) + right];
    let next = row;
    do next = down > 0 ? next.nextElementSibling : next.previousElementSibling; while (next && !next.querySelector(".cell"));
    return down && next ? next.querySelector(`[data-field="${CSS.escape(cell.dataset.field)}"]`) : undefined;
  }

  const below = (row) => {
    const found = [];
    for (let next = row.nextElementSibling; next && Number(next.dataset.depth) > Number(row.dataset.depth); next = next.nextElementSibling) found.push(next);
    return found;
  };

  async function fold(link) {
    const row = link.closest("tr");
    const open = link.getAttribute("aria-expanded") === "true";
    link.setAttribute("aria-expanded", String(!open));
    link.setAttribute("aria-label", link.getAttribute("aria-label").replace(/\w+$/, open ? "unfold" : "fold"));
    if (open) { below(row).forEach((one) => one.remove()); return; }
    const answer = await fetch(`?below=${encodeURIComponent(row.id)}`);
    if (!answer.ok) { location.href = link.href; return; }
    const holder = document.createElement("tbody");
    holder.innerHTML = await answer.text();
    const rows = [...holder.children];
    row.after(...rows);
    for (const one of rows) for (const cell of one.querySelectorAll(".cell")) show(one.id, cell.dataset.field);
  }

  body.addEventListener("click", (event) => {
    const link = event.target.closest("[data-fold]");
    const cell = event.target.closest(".cell");
    if (link) { event.preventDefault(); fold(link); }
    else if (cell) edit(cell);
  });
  body.addEventListener("keydown", (event) => {
    const cell = event.target.closest(".cell");
    if (!cell || event.ctrlKey || event.metaKey || event.altKey) return;
    const steps = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[event.key];
    if (steps) { event.preventDefault(); move(cell, ...steps)?.focus(); }
    else if (/^\d$/.test(event.key)) { event.preventDefault(); edit(cell, event.key); }
  });
  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key === "z" && !event.target.matches("input")) { event.preventDefault(); undo(); }
  });
  undoButton.addEventListener("click", undo);
  form.addEventListener("submit", () => { form.elements.edits.value = JSON.stringify({ edits: wanted(), seen }); leaving = true; });
  let leaving = false;
  addEventListener("beforeunload", (event) => { if (edits.length && !leaving) event.preventDefault(); });

  // Edits that were refused come back with the page.
  if (form.elements.edits.value) {
    const sent = JSON.parse(form.elements.edits.value);
    Object.assign(seen, sent.seen);
    for (const { node, set } of sent.edits) {
      for (const [name, value] of Object.entries(set)) {
        if (name !== "shares") edits.push({ node, field: name, after: value });
        else for (const [type, share] of Object.entries(value)) for (const [key, amount] of Object.entries(share)) edits.push({ node, field: `shares.${type}.${key}`, after: amount });
      }
    }
    for (const { node, field } of edits) show(node, field);
    told();
  }
})();
