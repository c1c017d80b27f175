// The timeline of reservations: drag over a GPU type's row to reserve it, drag a reservation to move it, or do both by keyboard.
// Nothing is written here: both lead to the form, which shows what is in the way.
(() => {
  "use strict";
  const svg = document.querySelector("[data-timeline]");
  if (!svg) return;
  const STEP = 1, HOURS = 24;
  const days = svg.dataset.days.split(" ").map((day) => { const [date, x] = day.split("@"); return { date, x: Number(x) }; });
  const right = svg.viewBox.baseVal.width, whole = days.length * HOURS;
  const rows = [...svg.querySelectorAll("[data-row]")].map((row) => ({ type: row.dataset.row, y: Number(row.dataset.y), height: Number(row.dataset.height) }));
  const drawn = svg.querySelector("[data-drawn]");
  const told = document.querySelector("[data-slot]");
  let slot = null; // { row, from, to } in hours of the wall clock since the first midnight
  let drag = null;

  const pad = (number) => String(number).padStart(2, "0");
  const snapped = (hours) => Math.max(0, Math.min(whole, Math.round(hours / STEP) * STEP));

  // Days need not be alike: on one of them the clock may be changed.
  function xAt(hours) {
    const day = Math.min(days.length - 1, Math.floor(hours / HOURS));
    const next = days[day + 1]?.x ?? right;
    return days[day].x + ((next - days[day].x) * (hours - day * HOURS)) / HOURS;
  }

  function hoursAt(x) {
    const day = Math.max(0, days.findLastIndex((one) => one.x <= x));
    const next = days[day + 1]?.x ?? right;
    return day * HOURS + ((x - days[day].x) / (next - days[day].x)) * HOURS;
  }

  function at(hours) {
    const date = new Date(`${days[0].date}T00:00:00Z`);
    date.setUTCHours(hours);
    return `${date.toISOString().slice(0, 10)}T${pad(date.getUTCHours())}:00`;
  }

  function point(event) {
    const box = svg.getBoundingClientRect(), scale = right / box.width;
    const x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale;
    return { hours: hoursAt(x), row: rows.findIndex((row) => y >= row.y && y < row.y + row.height), inside: x >= days[0].x };
  }

  function show() {
    const row = rows[slot.row];
    drawn.setAttribute("x", xAt(slot.from));
    drawn.setAttribute("y", row.y + 2);
    drawn.setAttribute("width", Math.max(2, xAt(slot.to) - xAt(slot.from)));
    drawn.setAttribute("height", row.height - 4);
    told.textContent = `${row.type}, ${at(slot.from).replace("T", " ")} to ${at(slot.to).replace("T", " ")}`;
  }

  function open(base, end, names) {
    location.assign(`${base}?${new URLSearchParams({ start: at(slot.from), end, zone: svg.dataset.zone, ...names })}`);
  }

  function reserve() {
    if (slot && slot.to > slot.from) open(svg.dataset.new, at(slot.to), { type: rows[slot.row].type });
  }

  svg.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    const window_ = event.target.closest(".window"), here = point(event);
    if (window_) {
      if (!window_.dataset.move || here.row < 0) return;
      const left = hoursAt(Number(window_.querySelector("rect").getAttribute("x")));
      const hours = (Date.parse(window_.dataset.end) - Date.parse(window_.dataset.start)) / 3_600_000;
      drag = { kind: "move", url: window_.dataset.move, row: here.row, hours, grip: here.hours - left, from: here.hours, moved: false };
      return;
    }
    if (!here.inside || here.row < 0) return;
    drag = { kind: "new", row: here.row, anchor: snapped(Math.floor(here.hours)) };
    slot = { row: here.row, from: drag.anchor, to: Math.min(whole, drag.anchor + STEP) };
    svg.setPointerCapture(event.pointerId);
    event.preventDefault();
    svg.focus({ preventScroll: true });
    show();
  });

  svg.addEventListener("pointermove", (event) => {
    if (!drag) return;
    const { hours } = point(event);
    if (drag.kind === "new") {
      const other = snapped(hours);
      slot = { row: drag.row, from: Math.min(drag.anchor, other), to: Math.max(drag.anchor + (other > drag.anchor ? 0 : STEP), other) };
    } else {
      if (!drag.moved && Math.abs(hours - drag.from) < STEP / 2) return;
      drag.moved = true;
      const from = Math.min(whole - STEP, snapped(hours - drag.grip));
      slot = { row: drag.row, from, to: Math.min(whole, from + drag.hours) };
    }
    show();
  });

  svg.addEventListener("pointerup", (event) => {
    const done = drag;
    drag = null;
    if (!done) return;
    if (done.kind === "new") reserve();
    else if (done.moved) {
      event.preventDefault();
      open(done.url, new Date(Date.parse(`${at(slot.from)}:00Z`) + done.hours * 3_600_000).toISOString().slice(0, 16), {});
    }
  });
  svg.addEventListener("pointercancel", () => { drag = null; });
  // A link is not dragged as a link, nor followed where it was dragged to.
  svg.addEventListener("dragstart", (event) => event.preventDefault());

  svg.addEventListener("keydown", (event) => {
    if (event.target !== svg) return;
    if (event.key === "Enter" && slot) return void (event.preventDefault(), reserve());
    if (event.key === "Escape") {
      slot = null;
      drawn.setAttribute("height", 0);
      return;
    }
    const [across, down] = { ArrowLeft: [-STEP, 0], ArrowRight: [STEP, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key] ?? [0, 0];
    if (!across && !down) return;
    event.preventDefault();
    if (!slot) slot = { row: 0, from: 9, to: 12 };
    else if (event.shiftKey) slot = { ...slot, to: Math.max(slot.from + STEP, Math.min(whole, slot.to + across)) };
    else {
      const length = slot.to - slot.from, from = Math.max(0, Math.min(whole - length, slot.from + across));
      slot = { row: Math.max(0, Math.min(rows.length - 1, slot.row + down)), from, to: from + length };
    }
    show();
  });
})();
