// The quota editor: branches unfold in place, cells are edited in place, nodes are added, moved and archived in place. Edits are kept here, to be
// undone, until they are sent as one change.
(() => {
  "use strict";

  const form = document.querySelector("[data-editor]");
  const body = document.querySelector("table.editor tbody");
  if (!form || !body) return;
  const undoButton = form.querySelector("[data-undo]");
  const sendButton = form.querySelector("[type=submit]");
  const count = form.querySelector("[data-count]");
  const dialog = document.querySelector("[data-node-dialog]");
  const blank = document.querySelector("[data-new-row]");
  // The oldest first: {op: "set", node, field, after}, {op: "create", node, parent, name, kind}, {op: "move", node, parent, name}, {op: "archive", node}.
  let edits = [];

  const milli = (text) => {
    const said = text.replace(/\s/g, "").toLowerCase();
    // Commas stand between thousands: 0,5 is no 5.
    const plain = /^\d{1,3}(,\d{3})+(\.\d+)?$/.test(said) ? said.replaceAll(",", "") : said;
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
    const last = edits.findLast((edit) => edit.op === "set" && edit.node === node && edit.field === field);
    const text = last ? written(field, last.after) : cell.dataset.value;
    cell.textContent = text;
    cell.classList.toggle("changed", text !== cell.dataset.value);
  }

  // What has become of a row besides its cells, told beside its name.
  function mark(node) {
    const row = document.getElementById(node);
    if (!row) return;
    const last = (op) => edits.findLast((edit) => edit.op === op && edit.node === node);
    const made = last("create"), moved = last("move"), archived = last("archive");
    const told = [];
    if (made) told.push("New");
    if (moved) told.push(`Moves to ${pathOf(moved.parent) ? `${pathOf(moved.parent)}/` : ""}${moved.name}`);
    if (archived) told.push("Archived");
    const badge = row.querySelector("[data-mark]");
    badge.textContent = told.join(", ");
    badge.hidden = !told.length;
    row.classList.toggle("going", Boolean(archived));
  }

  // A parent is named by its id, or by its path where its row is not on the page.
  const pathOf = (parent) => document.getElementById(parent)?.dataset.path ?? parent;
  const idAt = (path) => [...body.rows].find((row) => row.dataset.path === path)?.id ?? path;

  // The rows of new nodes, where their parents are on the page; and what became of the others.
  function redraw() {
    for (const edit of edits) {
      if (edit.op === "create") addRow(edit);
      if (edit.op === "set") show(edit.node, edit.field);
      else mark(edit.node);
    }
    for (const row of body.querySelectorAll("tr[data-new]")) if (!edits.some((edit) => edit.op === "create" && edit.node === row.id)) row.remove();
  }

  function addRow({ node, parent, name, kind }) {
    const above = document.getElementById(parent);
    if (!above || document.getElementById(node)) return;
    const row = blank.content.querySelector("tr").cloneNode(true);
    row.id = node;
    row.dataset.new = "";
    row.dataset.depth = Number(above.dataset.depth) + 1;
    row.dataset.path = `${above.dataset.path}/${name}`;
    row.dataset.kind = kind;
    row.querySelector("[data-name]").textContent = name;
    row.querySelector(".tree-name").className = `tree-name shift-${Math.min(6, Number(row.dataset.depth))}`;
    for (const one of row.querySelectorAll("[aria-label]")) one.setAttribute("aria-label", one.getAttribute("aria-label").replace("NEW", name));
    above.after(row);
  }

  // Nodes first, so that all cells have one; then one edit for the cells of each.
  function wanted() {
    const sets = new Map();
    for (const { op, node, field, after } of edits) {
      if (op !== "set") continue;
      const set = sets.get(node) ?? {};
      const [first, ...rest] = field.split(".");
      if (first === "shares") {
        const name = rest.pop();
        set.shares ??= {};
        set.shares[rest.join(".")] = { ...set.shares[rest.join(".")], [name]: after };
      } else set[first] = after;
      sets.set(node, set);
    }
    const nodes = edits.filter((edit) => edit.op === "create" || edit.op === "move").map(({ op, node, parent, name, kind }) => ({ op, node, parent, name, ...(kind ? { set: { kind } } : {}) }));
    const gone = edits.filter((edit) => edit.op === "archive").map(({ op, node }) => ({ op, node }));
    return [...nodes, ...[...sets].map(([node, set]) => ({ op: "update", node, set })), ...gone];
  }

  const seen = {};
  function told() {
    const nodes = new Set(edits.map((edit) => edit.node)).size;
    count.textContent = edits.length ? `${edits.length} ${edits.length === 1 ? "edit" : "edits"} of ${nodes} ${nodes === 1 ? "node" : "nodes"}` : "No edits";
    undoButton.disabled = sendButton.disabled = !edits.length;
  }

  function record(edit) {
    const row = document.getElementById(edit.node);
    if (row && !("new" in row.dataset)) seen[edit.node] ??= Number(row.dataset.revision);
    edits.push(edit);
    redraw();
    told();
  }

  function undo() {
    const last = edits.pop();
    if (!last) return;
    if (last.op === "set") show(last.node, last.field);
    else mark(last.node);
    redraw();
    told();
    (last.op === "set" ? cellOf(last.node, last.field) : document.getElementById(last.op === "create" ? last.parent : last.node)?.querySelector("[data-menu]"))?.focus();
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
      if (keep && written(field, value) !== cell.textContent) record({ op: "set", node, field, after: value });
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
    redraw();
  }

  // Rows of what is looked for, with what lies above it. Edits stay.
  async function find(words) {
    const answer = await fetch(`?rows=1&q=${encodeURIComponent(words)}`);
    if (!answer.ok) return;
    body.innerHTML = await answer.text();
    redraw();
    document.querySelector("[data-found]").textContent = body.rows.length ? "" : "No node matches.";
  }

  // Adding, moving and archiving

  const may = (row, what) => row.dataset.may.split(" ").includes(what) && !row.classList.contains("going");

  function openDialog(row, first) {
    const above = document.getElementById(row.id).dataset.path.split("/").slice(0, -1).join("/");
    dialog.dataset.node = row.id;
    dialog.querySelector("h2").textContent = row.dataset.path;
    const [add, moves] = ["create", "move"].map((name) => dialog.querySelector(`[data-do="${name}"]`));
    add.hidden = !may(row, "add");
    moves.hidden = !may(row, "move");
    dialog.querySelector('[data-do="archive"]').hidden = !may(row, "archive");
    add.reset();
    add.elements.kind.value = { org: "department", department: "team" }[row.dataset.kind] ?? "project";
    moves.elements.parent.value = above;
    moves.elements.name.value = row.dataset.path.split("/").at(-1);
    dialog.querySelector("datalist").replaceChildren(...[...body.rows].filter((one) => one.id !== row.id).map((one) => new Option(one.dataset.path)));
    dialog.showModal();
    const chosen = first === "move" && !moves.hidden ? moves.elements.parent : add.hidden ? null : add.elements.name;
    chosen?.focus();
  }

  function archive(row) {
    if (may(row, "archive")) record({ op: "archive", node: row.id });
  }

  const names = new Set();
  function newName() {
    let number = 1;
    while (names.has(`new-${number}`) || edits.some((edit) => edit.node === `new-${number}`)) number += 1;
    names.add(`new-${number}`);
    return `new-${number}`;
  }

  dialog.addEventListener("submit", (event) => {
    const asked = event.target.dataset.do, node = dialog.dataset.node, row = document.getElementById(node);
    const { parent, name, kind } = event.target.elements;
    if (asked === "create") record({ op: "create", node: newName(), parent: node, name: name.value.trim(), kind: kind.value });
    else if (asked === "move") record({ op: "move", node, parent: idAt(parent.value.trim()), name: name.value.trim() });
    else if (asked === "archive") archive(row);
  });
  dialog.addEventListener("close", () => document.getElementById(dialog.dataset.node)?.querySelector("[data-menu]")?.focus());
  body.addEventListener("keydown", (event) => {
    const row = event.target.closest("tr");
    if (!row || event.target.matches("input") || event.ctrlKey || event.metaKey || event.altKey) return;
    const step = { Insert: () => may(row, "add") && openDialog(row, "create"), F2: () => may(row, "move") && openDialog(row, "move"), Delete: () => event.target.matches("[data-menu]") && archive(row) }[event.key];
    if (step) { event.preventDefault(); step(); }
  });
  const search = document.querySelector("[data-find]");
  search.addEventListener("submit", (event) => { event.preventDefault(); find(search.elements.q.value.trim()); });

  body.addEventListener("click", (event) => {
    const link = event.target.closest("[data-fold]");
    const cell = event.target.closest(".cell");
    const menu = event.target.closest("[data-menu]");
    if (menu) openDialog(menu.closest("tr"), "create");
    else if (link) { event.preventDefault(); fold(link); }
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
    for (const { op, node, parent, name, set } of sent.edits) {
      if (op !== "update") { edits.push({ op, node, parent, name, kind: set?.kind }); continue; }
      for (const [key, value] of Object.entries(set)) {
        if (key !== "shares") edits.push({ op: "set", node, field: key, after: value });
        else for (const [type, share] of Object.entries(value)) for (const [part, amount] of Object.entries(share)) edits.push({ op: "set", node, field: `shares.${type}.${part}`, after: amount });
      }
    }
    redraw();
    // Each fault, and what somebody else changed meanwhile, at its cell, or at the name of its node.
    for (const { dataset, textContent } of document.querySelectorAll("[data-fault], [data-meanwhile]")) {
      const node = dataset.fault ?? dataset.meanwhile;
      const place = cellOf(node, dataset.field) ?? document.getElementById(node)?.querySelector("[data-menu]");
      place?.classList.add("fault" in dataset ? "wrong" : "overtaken");
      place?.setAttribute("title", textContent);
    }
    told();
  }
})();
