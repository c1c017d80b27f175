// The calendar of reservations: a column for each day of a week.
(() => {
  "use strict";
  const svg = document.querySelector("[data-calendar]");
  if (!svg) return;
  const GUTTER = 48, WIDTH = 140, HEAD = 26, HOUR = 28, STEP = 0.5, HOURS = 24;
  const days = svg.dataset.days.split(" ");

  const pad = (number) => String(number).padStart(2, "0");
  const clock = (hours) => `${pad(Math.floor(hours))}:${pad(Math.round((hours % 1) * 60))}`;

  // 24:00 is the next day's 00:00.
  function at({ lane }, hours) {
    if (hours < HOURS) return `${days[lane]}T${clock(hours)}`;
    const date = new Date(`${days[lane]}T00:00:00Z`);
    date.setUTCDate(date.getUTCDate() + 1);
    return `${date.toISOString().slice(0, 10)}T${clock(hours - HOURS)}`;
  }

  function point(event) {
    const box = svg.getBoundingClientRect(), scale = svg.viewBox.baseVal.width / box.width;
    const x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale;
    const lane = Math.max(0, Math.min(days.length - 1, Math.floor((x - GUTTER) / WIDTH)));
    return { lane, hours: (y - HEAD) / HOUR, inside: x >= GUTTER && y >= HEAD };
  }

  gpufleet.dragWindows(svg, {
    step: STEP, whole: HOURS, lanes: days.length, changesLane: true, first: { lane: 0, from: 9, to: 10 },
    keys: { ArrowUp: [0, -STEP], ArrowDown: [0, STEP], ArrowLeft: [-1, 0], ArrowRight: [1, 0] },
    at, point,
    begins: (window_) => (Number(window_.querySelector("rect").getAttribute("y")) - HEAD) / HOUR,
    box: ({ lane, from, to }) => ({ x: GUTTER + lane * WIDTH + 2, y: HEAD + from * HOUR, width: WIDTH - 4, height: Math.max(2, (to - from) * HOUR) }),
    words: ({ lane, from, to }) => `${days[lane]} ${clock(from)} to ${clock(to)}`,
    named: () => ({ type: svg.dataset.type }),
  });
})();
