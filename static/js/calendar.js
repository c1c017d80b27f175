// The calendar of reservations: drag over free hours to reserve them, drag a reservation to move it, or do both by keyboard.
// Nothing is written here: both lead to the form, which shows what it comes to.
(() => {
  "use strict";
  const svg = document.querySelector("[data-calendar]");
  if (!svg) return;
  const GUTTER = 48, WIDTH = 140, HEAD = 26, HOUR = 28, STEP = 0.5;
  const days = svg.dataset.days.split(" ");
  const drawn = svg.querySelector("[data-drawn]");
  const told = document.querySelector("[data-slot]");
  let slot = null; // { day, from, to } in hours
  let drag = null;

  const pad = (number) => String(number).padStart(2, "0");
  const clock = (hours) => `${pad(Math.floor(hours))}:${pad(Math.round((hours % 1) * 60))}`;
  const snapped = (hours) => Math.max(0, Math.min(24, Math.round(hours / STEP) * STEP));

  // The wall clock of the calendar's zone; 24:00 is the next day's 00:00.
  function at(day, hours) {
    if (hours < 24) return `${days[day]}T${clock(hours)}`;
    const date = new Date(`${days[day]}T00:00:00Z`);
    date.setUTCDate(date.getUTCDate() + 1);
    return `${date.toISOString().slice(0, 10)}T${clock(hours - 24)}`;
  }

  function point(event) {
    const box = svg.getBoundingClientRect();
    const scale = svg.viewBox.baseVal.width / box.width;
    const x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale;
    return { day: Math.max(0, Math.min(6, Math.floor((x - GUTTER) / WIDTH))), hours: (y - HEAD) / HOUR, inside: x >= GUTTER && y >= HEAD };
  }

  function show() {
    if (!slot) return;
    drawn.setAttribute("x", GUTTER + slot.day * WIDTH + 2);
    drawn.setAttribute("y", HEAD + slot.from * HOUR);
    drawn.setAttribute("width", WIDTH - 4);
    drawn.setAttribute("height", Math.max(2, (slot.to - slot.from) * HOUR));
    told.textContent = `${days[slot.day]} ${clock(slot.from)} to ${clock(slot.to)}`;
  }

  function open(base, names) {
    const where = new URLSearchParams({ start: at(slot.day, slot.from), end: at(slot.day, slot.to), ...names });
    location.assign(`${base}?${where}`);
  }

  function reserve() {
    if (slot && slot.to > slot.from) open(svg.dataset.new, { zone: svg.dataset.zone, type: svg.dataset.type });
  }

  svg.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    const window_ = event.target.closest(".window");
    const here = point(event);
    if (window_) {
      if (!window_.dataset.move) return;
      const hours = (Date.parse(window_.dataset.end) - Date.parse(window_.dataset.start)) / 3_600_000;
      const top = (Number(window_.querySelector("rect").getAttribute("y")) - HEAD) / HOUR;
      drag = { kind: "move", url: window_.dataset.move, hours, grip: here.hours - top, moved: false, from: here };
      return;
    }
    if (!here.inside) return;
    drag = { kind: "new", day: here.day, anchor: snapped(Math.floor(here.hours / STEP) * STEP) };
    slot = { day: here.day, from: drag.anchor, to: Math.min(24, drag.anchor + STEP) };
    svg.setPointerCapture(event.pointerId);
    event.preventDefault();
    svg.focus({ preventScroll: true });
    show();
  });

  svg.addEventListener("pointermove", (event) => {
    if (!drag) return;
    const here = point(event);
    if (drag.kind === "new") {
      const other = snapped(here.hours);
      slot = { day: drag.day, from: Math.min(drag.anchor, other), to: Math.max(drag.anchor + (other > drag.anchor ? 0 : STEP), other) };
    } else {
      if (!drag.moved && here.day === drag.from.day && Math.abs(here.hours - drag.from.hours) < STEP / 2) return;
      drag.moved = true;
      const from = Math.min(24 - STEP, snapped(here.hours - drag.grip));
      slot = { day: here.day, from, to: from + drag.hours };
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
      const end = new Date(Date.parse(`${at(slot.day, slot.from)}:00Z`) + done.hours * 3_600_000).toISOString().slice(0, 16);
      // The form's own zone is that of the reservation, so both are said with the zone of the calendar by its wall clock.
      location.assign(`${done.url}?${new URLSearchParams({ start: at(slot.day, slot.from), end, zone: svg.dataset.zone })}`);
    }
  });

  svg.addEventListener("pointercancel", () => { drag = null; });
  // A link is not dragged as a link.
  svg.addEventListener("dragstart", (event) => event.preventDefault());

  svg.addEventListener("keydown", (event) => {
    if (event.target !== svg) return;
    const steps = { ArrowUp: [0, -STEP], ArrowDown: [0, STEP], ArrowLeft: [-1, 0], ArrowRight: [1, 0] }[event.key];
    if (event.key === "Enter" && slot) return void (event.preventDefault(), reserve());
    if (event.key === "Escape") {
      slot = null;
      drawn.setAttribute("height", 0);
      return;
    }
    if (!steps) return;
    event.preventDefault();
    if (!slot) slot = { day: 0, from: 9, to: 10 };
    else if (event.shiftKey) slot = { ...slot, to: Math.max(slot.from + STEP, Math.min(24, slot.to + steps[1])) };
    else {
      const length = slot.to - slot.from;
      const from = Math.max(0, Math.min(24 - length, slot.from + steps[1]));
      slot = { day: Math.max(0, Math.min(6, slot.day + steps[0])), from, to: from + length };
    }
    show();
  });
})();
