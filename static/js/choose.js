// Choosing rows of a list: boxes in front of them, a range with Shift, all of the page at once, `x` for the row that has the focus and `b` for the bar
// that says what to do with them. Without this script the boxes and the bar work as a plain form.
(() => {
  "use strict";

  const bar = document.getElementById("bulk");
  if (!bar) return;
  const { shell } = window.gpufleet;
  const count = bar.querySelector("[data-chosen]");
  const { noun = "job" } = bar.dataset;
  // What the bar offers first; only some actions take a priority.
  const action = bar.elements.action || bar.querySelector("button");
  const priority = bar.querySelector(".bulk-priority");
  let last = null;

  const boxes = () => [...document.querySelectorAll('input[name="row"][form="bulk"]')];
  const every = () => document.querySelector("[data-choose-all]");

  function show() {
    const all = boxes();
    const chosen = all.filter((box) => box.checked);
    const head = every();
    if (head) {
      head.checked = all.length > 0 && chosen.length === all.length;
      head.indeterminate = chosen.length > 0 && chosen.length < all.length;
    }
    for (const box of all) box.closest("tr").classList.toggle("chosen", box.checked);
    const text = chosen.length ? `${chosen.length.toLocaleString("en")} ${noun}${chosen.length === 1 ? "" : "s"} chosen` : "";
    if (count.textContent !== text) count.textContent = text;
    bar.classList.toggle("is-on", chosen.length > 0);
    if (priority) priority.hidden = action.value !== "priority";
  }

  function upTo(box, checked) {
    const all = boxes();
    const [from, to] = [all.indexOf(last), all.indexOf(box)].sort((one, other) => one - other);
    for (const one of from < 0 ? [box] : all.slice(from, to + 1)) one.checked = checked;
  }

  document.addEventListener("click", (event) => {
    if (event.target.matches('input[name="row"][form="bulk"]')) {
      if (event.shiftKey) upTo(event.target, event.target.checked);
      last = event.target;
      show();
    } else if (event.target.matches("[data-choose-all]")) {
      for (const box of boxes()) box.checked = event.target.checked;
      show();
    } else if (event.target.closest("[data-choose-none]")) {
      for (const box of boxes()) box.checked = false;
      show();
      document.querySelector("main table.grid a")?.focus();
    }
  });

  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || shell.isTyping(event) || !shell.lettersOn()) return;
    if (document.querySelector("dialog[open]")) return;
    if (event.key === "x") {
      const box = document.activeElement.closest("tr")?.querySelector('input[name="row"][form="bulk"]');
      if (!box) return;
      box.checked = !box.checked;
      last = box;
      show();
    } else if (event.key === "b" && bar.classList.contains("is-on")) {
      event.preventDefault();
      action.focus();
    }
  });

  action.addEventListener("change", show);
  bar.addEventListener("submit", (event) => {
    if (!priority) return;
    // Said here, at its field: the page that would say it has no boxes, so what was chosen would be lost.
    const number = bar.elements.priority;
    number.required = !priority.hidden;
    if (!priority.hidden && !number.reportValidity()) {
      event.preventDefault();
      return;
    }
    bar.elements.matching.value = location.search;
  });
  // Rows come and go: by the list's own filters and pages, and while it is live.
  new MutationObserver(show).observe(document.querySelector("main"), { childList: true, subtree: true });
  addEventListener("pageshow", show);
  show();
})();
