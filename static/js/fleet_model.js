// The fleet map's data: GPUs as columns, filled by a snapshot and kept by changes and readings. Knows nothing of the page.
(() => {
  "use strict";

  const UNREAD = 255;
  const FREE = 0;
  const SEVERAL = -1;
  const OUTSIDE = -2;
  const ANOTHER = 0;
  const IDLE_BELOW = 5;
  const MINUTE = 60;

  function bytesOf(base64) {
    const text = atob(base64);
    const bytes = new Uint8Array(text.length);
    for (let place = 0; place < text.length; place += 1) bytes[place] = text.charCodeAt(place);
    return bytes;
  }

  class Fleet {
    constructor(snapshot) {
      this.nodes = snapshot.nodes;
      this.spare = new Set(snapshot.nodes.spare);
      this.types = snapshot.types;
      this.healths = snapshot.healths;
      this.inService = new Set(snapshot.in_service);
      this.freshMs = snapshot.fresh_seconds * 1000;
      this.owners = snapshot.owners;
      const { gpus } = snapshot;
      this.size = gpus.id.length;
      this.ids = gpus.id;
      this.publicIds = gpus.public_id;
      this.node = Uint32Array.from(gpus.node);
      this.index = Uint8Array.from(gpus.index);
      this.type = Uint8Array.from(gpus.type);
      this.mode = gpus.mode;
      this.health = Uint8Array.from(gpus.health);
      this.milli = Uint16Array.from(gpus.milli);
      this.owner = Int32Array.from(gpus.owner);
      this.since = Float64Array.from(gpus.since);
      this.sm = new Uint8Array(this.size).fill(UNREAD);
      this.place = new Map(gpus.id.map((id, number) => [id, number]));
      this.frames = new Map();
      for (const reading of snapshot.readings) {
        const places = reading.ids.map((id) => this.place.get(id) ?? -1);
        this.frames.set(reading.cluster, { places, order: reading.order, at: 0 });
      }
      this.read(snapshot.readings, snapshot.at);
    }

    // Changed GPUs. Returns the numbers of those that changed, or null where only a snapshot helps: a GPU came or went, or an owner is new.
    change(columns) {
      if (columns.gone.length && columns.gone.some((id) => this.place.has(id))) return null;
      const changed = [];
      for (let row = 0; row < columns.id.length; row += 1) {
        const number = this.place.get(columns.id[row]);
        if (number === undefined) return null;
        this.health[number] = columns.health[row];
        this.mode[number] = columns.mode[row];
        this.milli[number] = columns.milli[row];
        this.owner[number] = columns.owner[row];
        this.since[number] = columns.since[row];
        changed.push(number);
      }
      return changed;
    }

    // New readings. Returns false where the GPUs behind the bytes are others than those of the snapshot.
    read(readings, serverNow) {
      for (const reading of readings) {
        const frame = this.frames.get(reading.cluster);
        if (!frame || frame.order !== reading.order) return false;
        frame.at = reading.at;
        const bytes = bytesOf(reading.sm);
        const stale = serverNow - reading.at > this.freshMs;
        frame.places.forEach((number, place) => {
          if (number >= 0) this.sm[number] = stale ? UNREAD : bytes[place];
        });
      }
      return true;
    }

    // Readings that have grown old say nothing any more. Returns whether there were any.
    expire(serverNow) {
      let any = false;
      for (const frame of this.frames.values()) {
        if (!frame.at || serverNow - frame.at <= this.freshMs) continue;
        frame.at = 0;
        any = true;
        for (const number of frame.places) if (number >= 0) this.sm[number] = UNREAD;
      }
      return any;
    }

    // The team that a GPU is said to belong to: null is free, ANOTHER may not be named.
    team(number) {
      if (!this.milli[number] || this.owner[number] === FREE) return null;
      if (this.owner[number] === SEVERAL || this.owner[number] === OUTSIDE) return this.owner[number];
      const named = this.owners[this.owner[number]];
      return named ? named[0] : ANOTHER;
    }

    teamName(team) {
      if (team === null) return "free";
      if (team === SEVERAL) return "several teams";
      if (team === OUTSIDE) return "outside gpufleet";
      if (team === ANOTHER) return "another team";
      return this.teamNames().get(team);
    }

    // Every team that may be named, in the order of names.
    teamNames() {
      if (!this.named) {
        const pairs = new Map(Object.values(this.owners).map(([team, name]) => [team, name]));
        this.named = new Map([...pairs].sort((a, b) => a[1].localeCompare(b[1])));
      }
      return this.named;
    }

    isIdle(number) {
      return this.milli[number] > 0 && 1000 * this.sm[number] < IDLE_BELOW * this.milli[number];
    }

    heldSeconds(number, serverNow) {
      return this.milli[number] ? Math.max(0, serverNow / 1000 - this.since[number]) : null;
    }

    placeOf(number) {
      const node = this.node[number];
      const path = this.nodes.path[node];
      return [this.nodes.cluster[node], ...(path ? path.split("/") : [])];
    }

    // The group of a GPU at a depth: 0 is the cluster. A node that stands higher is grouped where it stands.
    groupOf(number, depth) {
      return this.placeOf(number).slice(0, depth + 1);
    }

    // What a cell says: the same facts for the eye (tooltip) and the ear.
    facts(number, serverNow, format) {
      const node = this.node[number];
      const team = this.team(number);
      const held = this.heldSeconds(number, serverNow);
      const health = this.healths[this.health[number]].replace("_", "-");
      const part = this.milli[number] && this.milli[number] < 1000 ? `${format.gpus(this.milli[number])} of it held, ` : "";
      return {
        name: `${this.nodes.name[node]} GPU ${this.index[number]}`,
        place: this.placeOf(number).join(" / "),
        type: this.types[this.type[number]] + (this.mode[number] === "whole" ? "" : ` (${{ mig: "MIG", mps: "MPS", timeslice: "time slice" }[this.mode[number]] || this.mode[number]})`),
        team: team === null ? (this.spare.has(node) ? "free, spare" : "free") : `${part}${team > 0 ? "team " : ""}${this.teamName(team)}`,
        held: held === null ? "" : held < MINUTE ? "just now" : format.duration(held),
        sm: this.sm[number] === UNREAD ? "no reading" : `${this.sm[number]}% SM`,
        health,
      };
    }
  }

  window.gpufleet = Object.assign(window.gpufleet || {}, { Fleet, fleetWords: { UNREAD, SEVERAL, OUTSIDE, ANOTHER } });
})();
