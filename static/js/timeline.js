// The timeline of reservations: a row for each GPU type.
(() => {
  "use strict";
  const svg = document.querySelector("[data-timeline]");
  if (!svg) return;
  const STEP = 1, HOURS = 24;
  const days = svg.dataset.days.split(" ").map((day) => { const [date, x] = day.split("@"); return { date, x: Number(x) }; });
  const right = svg.viewBox.baseVal.width;
  const rows = [...svg.querySelectorAll("[data-row]")].map((row) => ({ type: row.dataset.row, y: Number(row.dataset.y), height: Number(row.dataset.height) }));

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

  // By the wall clock, in hours since the first midnight.
  function at(_, hours) {
    const date = new Date(`${days[0].date}T00:00:00Z`);
    date.setUTCHours(hours);
    return `${date.toISOString().slice(0, 13)}:00`;
  }

  function point(event) {
    const box = svg.getBoundingClientRect(), scale = right / box.width;
    const x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale;
    return { hours: hoursAt(x), lane: rows.findIndex((row) => y >= row.y && y < row.y + row.height), inside: x >= days[0].x };
  }

  gpufleet.dragWindows(svg, {
    step: STEP, whole: days.length * HOURS, lanes: rows.length, changesLane: false, first: { lane: 0, from: 9, to: 12 },
    keys: { ArrowLeft: [0, -STEP], ArrowRight: [0, STEP], ArrowUp: [-1, 0], ArrowDown: [1, 0] },
    at, point,
    begins: (window_) => hoursAt(Number(window_.querySelector("rect").getAttribute("x"))),
    box: ({ lane, from, to }) => ({ x: xAt(from), y: rows[lane].y + 2, width: Math.max(2, xAt(to) - xAt(from)), height: rows[lane].height - 4 }),
    words: (slot) => `${rows[slot.lane].type}, ${at(slot, slot.from).replace("T", " ")} to ${at(slot, slot.to).replace("T", " ")}`,
    named: ({ lane }) => ({ type: rows[lane].type }),
  });
})();
