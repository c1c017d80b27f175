// Reserving on a drawn calendar: drag over free time to reserve it, drag a reservation to move it, or do both by keyboard.
// Nothing is written here: both lead to the form, which shows what is in the way.
//
// A slot is { lane, from, to }: a lane is a day or a row, and times are hours since the lane's beginning. `on` says how they are drawn:
// `step` and `whole` (hours), `lanes` (how many), `first` (the slot of the first key), `keys` (by key: [lanes, hours]), `changesLane` (whether
// what is dragged goes to other lanes), and the functions `point(event)` → { lane, hours, inside }, `begins(window)` → hours,
// `at(slot, hours)` → the wall clock, `box(slot)` → { x, y, width, height }, `words(slot)` and `named(slot)` (what the form is told besides).
(() => {
  "use strict";

  function dragWindows(svg, on) {
    const { step, whole, lanes } = on;
    const drawn = svg.querySelector("[data-drawn]");
    const told = document.querySelector("[data-slot]");
    let slot = null;
    let drag = null;

    const clamped = (number, most) => Math.max(0, Math.min(most, number));
    const snapped = (hours) => clamped(Math.round(hours / step) * step, whole);

    function show(next) {
      slot = next;
      for (const [name, value] of Object.entries(on.box(slot))) drawn.setAttribute(name, value);
      told.textContent = on.words(slot);
    }

    // The form's own zone is that of the reservation, so times are said with the zone of the calendar, by its wall clock.
    function open(base, end, names) {
      location.assign(`${base}?${new URLSearchParams({ start: on.at(slot, slot.from), end, zone: svg.dataset.zone, ...names })}`);
    }

    function reserve() {
      if (slot && slot.to > slot.from) open(svg.dataset.new, on.at(slot, slot.to), on.named(slot));
    }

    svg.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      const box = event.target.closest(".window"), here = on.point(event);
      if (box) {
        if (!box.dataset.move || here.lane < 0) return;
        const hours = (Date.parse(box.dataset.end) - Date.parse(box.dataset.start)) / 3_600_000;
        drag = { kind: "move", url: box.dataset.move, from: here, hours, grip: here.hours - on.begins(box), moved: false };
        return;
      }
      if (!here.inside || here.lane < 0) return;
      const anchor = snapped(Math.floor(here.hours / step) * step);
      drag = { kind: "new", from: here, anchor };
      svg.setPointerCapture(event.pointerId);
      event.preventDefault();
      svg.focus({ preventScroll: true });
      show({ lane: here.lane, from: anchor, to: Math.min(whole, anchor + step) });
    });

    svg.addEventListener("pointermove", (event) => {
      if (!drag) return;
      const here = on.point(event);
      const lane = on.changesLane && drag.kind === "move" ? here.lane : drag.from.lane;
      if (drag.kind === "new") {
        const other = snapped(here.hours), { anchor } = drag;
        show({ lane, from: Math.min(anchor, other), to: Math.max(anchor + (other > anchor ? 0 : step), other) });
        return;
      }
      if (!drag.moved && lane === drag.from.lane && Math.abs(here.hours - drag.from.hours) < step / 2) return;
      drag.moved = true;
      const from = Math.min(whole - step, snapped(here.hours - drag.grip));
      show({ lane, from, to: Math.min(whole, from + drag.hours) });
    });

    svg.addEventListener("pointerup", (event) => {
      const done = drag;
      drag = null;
      if (done?.kind === "new") reserve();
      else if (done?.moved) {
        event.preventDefault();
        // As long as it was, also where that is beyond what is drawn.
        open(done.url, new Date(Date.parse(`${on.at(slot, slot.from)}:00Z`) + done.hours * 3_600_000).toISOString().slice(0, 16), {});
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
      const steps = on.keys[event.key];
      if (!steps) return;
      event.preventDefault();
      const [across, later] = steps;
      if (!slot) show(on.first);
      else if (event.shiftKey) show({ ...slot, to: Math.max(slot.from + step, Math.min(whole, slot.to + later)) });
      else {
        const length = slot.to - slot.from, from = clamped(slot.from + later, whole - length);
        show({ lane: clamped(slot.lane + across, lanes - 1), from, to: from + length });
      }
    });
  }

  window.gpufleet = Object.assign(window.gpufleet || {}, { dragWindows });
})();
