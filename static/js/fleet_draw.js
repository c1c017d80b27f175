// How the fleet map looks: each GPU has a look (a small number), and only cells whose look changed are drawn again.
(() => {
  "use strict";

  const { UNREAD, SEVERAL, OUTSIDE, ANOTHER } = window.gpufleet.fleetWords;
  const HEAT_STEPS = 10;
  const SERIES = 10;
  const AGES = [[3600, 9], [6 * 3600, 7], [86400, 5], [3 * 86400, 3], [7 * 86400, 2], [Infinity, 0]];
  const GLYPHS = { suspect: "bang", draining: "down", burn_in: "dot", drained: "bar", repairing: "slash", down: "cross" };
  const TONES = { healthy: "good-soft", suspect: "warn", draining: "move", burn_in: "move", drained: "rest", repairing: "move", down: "bad" };
  const DIM = 1 << 20;

  // The colours of the page's theme, read from its tokens.
  function palette() {
    const probe = document.createElement("span");
    document.body.append(probe);
    const style = getComputedStyle(probe);
    const read = (name) => {
      probe.style.color = `var(--${name})`;
      return style.color;
    };
    const heat = Array.from({ length: HEAT_STEPS }, (_, step) => read(`heat-${step}`));
    const names = ["cell-edge", "cell-empty", "hatch", "held", "waste", "sunken", "rest", "surface", "ink", "good", "warn", "bad", "move", "good-soft"];
    const found = Object.fromEntries(names.map((name) => [name, read(name)]));
    found.series = Array.from({ length: SERIES }, (_, number) => read(`series-${number}`));
    found.heat = heat;
    probe.remove();
    return found;
  }

  // A look is a number, so that comparing is cheap; `styles` says what to draw for it.
  class Looks {
    constructor() {
      this.numbers = new Map();
      this.styles = [];
    }

    of(key, make) {
      let number = this.numbers.get(key);
      if (number === undefined) {
        number = this.styles.push(make()) - 1;
        this.numbers.set(key, number);
      }
      return number;
    }
  }

  class Painter {
    constructor() {
      this.restyle();
    }

    // The theme changed: every look is made anew.
    restyle() {
      this.colours = palette();
      this.looks = new Looks();
    }

    teamsInOrder(fleet) {
      return [...fleet.teamNames().keys()];
    }

    // The look of one GPU when the map is coloured by `colour`.
    look(fleet, number, colour, serverNow) {
      const { looks, colours } = this;
      const free = () => looks.of("free", () => ({ fill: colours["cell-empty"] }));
      if (colour === "health") return this.healthLook(fleet.healths[fleet.health[number]]);
      if (colour === "held") {
        if (!fleet.inService.has(fleet.health[number]) && !fleet.milli[number]) return looks.of("out", () => ({ fill: colours.sunken, glyph: "cross", ink: colours.rest }));
        if (!fleet.milli[number]) return free();
        const tenths = Math.max(1, Math.round(fleet.milli[number] / 100));
        return looks.of(`held ${tenths}`, () => ({ fill: colours["cell-empty"], part: tenths / 10, partFill: colours.held }));
      }
      if (colour === "owner") return this.ownerLook(fleet, number, free);
      if (colour === "age") {
        const seconds = fleet.heldSeconds(number, serverNow);
        if (seconds === null) return free();
        const step = AGES.find(([limit]) => seconds < limit)[1];
        return looks.of(`age ${step}`, () => ({ fill: colours.heat[step] }));
      }
      return this.smLook(fleet, number, free);
    }

    smLook(fleet, number, free) {
      const { looks, colours } = this;
      const sm = fleet.sm[number];
      if (sm === UNREAD) return looks.of("unread", () => ({ fill: colours["cell-empty"], hatch: colours.hatch }));
      if (!fleet.milli[number] && sm < 5) return free();
      if (fleet.isIdle(number)) return looks.of("idle", () => ({ fill: colours.heat[0], frame: colours.waste }));
      // Steps that the key shows: a colour between two of them could not be told from either.
      const step = Math.min(HEAT_STEPS - 1, Math.floor((sm * HEAT_STEPS) / 100));
      return looks.of(`sm ${step}`, () => ({ fill: colours.heat[step] }));
    }

    ownerLook(fleet, number, free) {
      const { looks, colours } = this;
      const team = fleet.team(number);
      if (team === null) return free();
      if (team === ANOTHER) return looks.of("another", () => ({ fill: colours.sunken, glyph: "dot", ink: colours.rest }));
      if (team === SEVERAL) return looks.of("several", () => ({ fill: colours.sunken, glyph: "slash", ink: colours.ink }));
      if (team === OUTSIDE) return looks.of("outside", () => ({ fill: colours.sunken, glyph: "bar", ink: colours.ink }));
      return looks.of(`team ${team}`, () => this.teamStyle(this.teamsInOrder(fleet).indexOf(team)));
    }

    // Ten colours; the next ten teams have them again with a mark, so that colour is never the only sign.
    teamStyle(place) {
      const style = { fill: this.colours.series[place % SERIES] };
      const marks = ["", "dot", "bar", "slash"];
      const glyph = marks[Math.floor(place / SERIES) % marks.length];
      return glyph ? { ...style, glyph, ink: this.colours.surface } : style;
    }

    healthLook(health) {
      const { looks, colours } = this;
      return looks.of(`health ${health}`, () => ({ fill: colours[TONES[health]], glyph: GLYPHS[health] || "", ink: colours.surface }));
    }

    draw(context, x, y, size, look) {
      const { colours } = this;
      const style = this.looks.styles[look & ~DIM];
      context.globalAlpha = 1;
      context.clearRect(x - 0.5, y - 0.5, size + 1, size + 1);
      if (look & DIM) {
        context.globalAlpha = 0.35;
        context.fillStyle = colours["cell-empty"];
        context.fillRect(x, y, size, size);
        this.edge(context, x, y, size, colours["cell-edge"]);
        context.globalAlpha = 1;
        return;
      }
      context.fillStyle = style.fill;
      context.fillRect(x, y, size, size);
      if (style.part) {
        context.fillStyle = style.partFill;
        const height = Math.max(1, Math.round(size * style.part));
        context.fillRect(x, y + size - height, size, height);
      }
      if (style.hatch) this.hatch(context, x, y, size, style.hatch);
      if (style.glyph) this.glyph(context, x, y, size, style);
      this.edge(context, x, y, size, colours["cell-edge"]);
      if (style.frame) {
        const width = size >= 14 ? 3 : 2;
        context.lineWidth = width;
        context.strokeStyle = style.frame;
        context.strokeRect(x + width / 2, y + width / 2, size - width, size - width);
      }
    }

    edge(context, x, y, size, colour) {
      context.lineWidth = 1;
      context.strokeStyle = colour;
      context.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1);
    }

    hatch(context, x, y, size, colour) {
      context.save();
      context.beginPath();
      context.rect(x, y, size, size);
      context.clip();
      context.lineWidth = 1;
      context.strokeStyle = colour;
      context.beginPath();
      for (let offset = 3; offset < size * 2; offset += 4) {
        context.moveTo(x + offset, y);
        context.lineTo(x, y + offset);
      }
      context.stroke();
      context.restore();
    }

    glyph(context, x, y, size, style) {
      const middle = size / 2;
      const reach = Math.max(2, size * 0.25);
      const line = (...points) => {
        context.beginPath();
        points.forEach(([dx, dy], place) => context[place ? "lineTo" : "moveTo"](x + middle + dx * reach, y + middle + dy * reach));
        context.stroke();
      };
      context.lineWidth = Math.max(1.25, size / 9);
      context.strokeStyle = style.ink;
      context.fillStyle = style.ink;
      if (style.glyph === "cross") {
        line([-1, -1], [1, 1]);
        line([-1, 1], [1, -1]);
      } else if (style.glyph === "slash") line([-1, 1], [1, -1]);
      else if (style.glyph === "bar") line([-1, 0], [1, 0]);
      else if (style.glyph === "down") line([-1, -0.4], [0, 0.7], [1, -0.4]);
      else if (style.glyph === "bang") {
        line([0, -1.2], [0, 0.3]);
        line([0, 0.9], [0, 1.3]);
      } else {
        context.beginPath();
        context.arc(x + middle, y + middle, Math.max(1.25, size / 8), 0, 2 * Math.PI);
        context.fill();
      }
    }
  }

  window.gpufleet = Object.assign(window.gpufleet || {}, { fleetDraw: { Painter, DIM } });
})();
