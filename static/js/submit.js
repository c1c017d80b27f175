// The submission page: the form and the YAML follow each other, faults stand at their fields, and what would become of the job is asked as one types.
(() => {
  "use strict";

  const form = document.getElementById("job");
  if (!form) return;
  const TYPING_MS = 250;
  const SAVE_MS = 2500;
  const SLOW_MS = 400;
  const csrf = document.querySelector('meta[name="csrf-token"]').content;
  const yaml = document.getElementById("yaml");
  const fit = document.getElementById("fit");
  const panel = fit.closest(".fit");
  const holder = form.querySelector("[data-form]");
  const touched = new Set();
  const MISSING = ["This field is required.", "State roles, or gpus and workers for a single one.", "It is empty."];

  let begun = form.hasAttribute("data-begun");
  let asking = null;
  let timer = 0;
  let saver = 0;
  let changed = false;
  let saving = null;
  let pressed = Promise.resolve();
  let letGo = () => {};

  const field = (path) => [...form.elements].find((one) => one.name === path && one.closest("[data-path]"));
  const from = (side) => { form.elements._from.value = side; };
  from(form.dataset.leads || "form");

  function parsed(html) {
    return new DOMParser().parseFromString(html, "text/html").body.childNodes;
  }

  function paragraphs(messages) {
    return messages.map((message) => {
      const line = document.createElement("p");
      line.className = "error";
      line.textContent = message;
      return line;
    });
  }

  // What a section says is seen, also where it was folded or left out as nobody needs it here.
  function reveal(input) {
    const section = input.closest("details");
    if (section) Object.assign(section, { hidden: false, open: true });
  }

  // What is only not there yet is no fault before somebody was at it, or wanted to submit.
  const shown = (path, messages) => messages.filter((message) => begun || touched.has(path) || !MISSING.includes(message));

  function showFaults(told) {
    let count = 0;
    for (const box of form.querySelectorAll("[data-path]")) {
      const path = box.dataset.path;
      const messages = shown(path, told.faults[path] || []);
      count += messages.length;
      const place = box.querySelector("[data-faults]");
      const text = messages.join("\n");
      if (place.dataset.said !== text) {
        place.dataset.said = text;
        place.replaceChildren(...paragraphs(messages));
      }
      const input = box.querySelector("input, select, textarea");
      if (messages.length) input.setAttribute("aria-invalid", "true");
      else input.removeAttribute("aria-invalid");
      if (messages.length) reveal(input);
      const bound = box.querySelector("[data-bound]");
      bound.textContent = told.bounds[path] || "";
      bound.hidden = !bound.textContent;
      const was = told.differs.find((one) => one.path === path);
      const before = box.querySelector("[data-was]");
      before.hidden = !was;
      before.textContent = was ? `was ${was.was || "empty"}` : "";
    }
    const others = form.querySelector("[data-others]");
    count += told.others.length;
    form.querySelector("[data-count]").textContent = count ? `${count} ${count === 1 ? "problem" : "problems"} to fix.` : "";
    form.querySelector("[data-other-list]").replaceChildren(...told.others.map((message) => Object.assign(document.createElement("li"), { textContent: message })));
    others.hidden = !count;
    showWhere();
    return count;
  }

  // A link to every field that has a fault. It stays folded or open as it is, so that nothing jumps under who types.
  function showWhere() {
    const where = form.querySelector("[data-fault-links]");
    const wrong = [...form.querySelectorAll("[data-path]")].filter((box) => box.querySelector("[data-faults]").textContent.trim());
    const links = wrong.map((box) => {
      const role = box.closest(".role")?.querySelector("legend").textContent.toLowerCase();
      const link = document.createElement("a");
      link.href = `#${box.querySelector("input, select, textarea").id}`;
      link.textContent = box.querySelector("label").firstChild.textContent.trim() + (role ? `, ${role}` : "");
      const line = document.createElement("li");
      line.append(link);
      return line;
    });
    const list = where.querySelector("ul");
    if (list.textContent.replace(/\s+/g, "") !== links.map((line) => line.textContent).join("").replace(/\s+/g, "")) list.replaceChildren(...links);
    where.hidden = !links.length;
  }

  function showFit(html, count) {
    fit.replaceChildren(...parsed(html));
    fit.querySelectorAll("time[data-moment]").forEach(window.gpufleet.shell.paintTime);
    const again = fit.querySelector("[data-again]");
    if (again) {
      clearTimeout(timer);
      timer = setTimeout(() => look(form.elements._from.value), Number(again.dataset.again));
    }
    const verdict = fit.querySelector("[data-verdict]");
    const said = verdict ? verdict.textContent.trim() : count ? `${count} ${count === 1 ? "problem" : "problems"}` : "";
    const say = form.querySelector("[data-say]");
    if (say.textContent !== said) say.textContent = said;
  }

  // Said aloud only when it is something else than before.
  function showDue(html) {
    const due = form.querySelector("[data-due]");
    const fresh = document.createElement("div");
    fresh.replaceChildren(...parsed(html));
    fresh.querySelectorAll("time[data-moment]").forEach(window.gpufleet.shell.paintTime);
    if (due.textContent !== fresh.textContent) due.replaceChildren(...fresh.childNodes);
  }

  function take(told, side) {
    if (side === "yaml" && told.form) holder.replaceChildren(...parsed(told.form));
    else if (side === "yaml") {
      for (const box of form.querySelectorAll("[data-path]")) {
        if (box.querySelector(".when")) continue; // a schedule's own; no YAML says it
        const input = box.querySelector("input, select, textarea");
        const value = told.values[box.dataset.path] || "";
        if (input.value === value) continue;
        input.value = value;
        if (value) reveal(input);
      }
    } else if (yaml.value !== told.yaml) yaml.value = told.yaml;
    showDue(told.due);
    form.querySelector("[data-submit]").textContent = told.send;
    form.querySelector("[data-keep]").hidden = told.recurs;
    form.querySelector("[data-command]").textContent = told.command;
    form.querySelector("[data-curl]").textContent = told.curl;
    showFit(told.fit, showFaults(told));
  }

  // In place of what was asked for before: on a busy console the answer takes seconds. A verdict stays, paler, until the next one.
  function sayInstead(text) {
    if (fit.querySelector("[data-verdict]")) return;
    fit.replaceChildren(Object.assign(document.createElement("p"), { className: "soft", textContent: text }));
  }

  async function look(side) {
    asking?.abort();
    asking = new AbortController();
    const mine = asking;
    panel.setAttribute("aria-busy", "true");
    const slow = setTimeout(() => mine === asking && sayInstead("Checking when and where it starts…"), SLOW_MS);
    try {
      const answer = await fetch(form.dataset.look, {
        method: "POST",
        body: new FormData(form),
        headers: { "X-CSRFToken": csrf, Accept: "application/json" },
        signal: mine.signal,
      });
      if (!answer.ok) throw new Error(String(answer.status));
      const told = await answer.json();
      await pressed;
      if (mine === asking) take(told, side);
    } catch (fault) {
      if (fault.name === "AbortError") return;
      form.querySelector("[data-say]").textContent = "The console did not answer. What you see may be old.";
      sayInstead("The console did not answer.");
    } finally {
      clearTimeout(slow);
    }
    if (mine === asking) panel.removeAttribute("aria-busy");
  }

  function soon(side) {
    from(side);
    asking?.abort();
    clearTimeout(timer);
    timer = setTimeout(() => look(side), TYPING_MS);
    changed = true;
    clearTimeout(saver);
    saver = setTimeout(save, SAVE_MS);
  }

  function save() {
    clearTimeout(saver);
    if (!changed) return;
    changed = false;
    saving = send().finally(() => (saving = null));
  }

  async function send() {
    const note = form.querySelector("[data-saved]");
    try {
      const answer = await fetch(form.dataset.draft, { method: "POST", body: new FormData(form), headers: { "X-CSRFToken": csrf }, keepalive: true });
      if (!answer.ok) throw new Error(String(answer.status));
      form.elements._draft.value = (await answer.json()).draft;
      note.textContent = "Draft saved";
    } catch {
      note.textContent = "Draft not saved";
    }
  }

  form.addEventListener("input", (event) => {
    if (event.target === yaml) return soon("yaml");
    const box = event.target.closest("[data-path]");
    if (!box) return;
    touched.add(box.dataset.path);
    soon("form");
  });

  form.querySelector("[data-fault-links]").addEventListener("click", (event) => {
    const link = event.target.closest("a");
    const input = link && document.getElementById(link.hash.slice(1));
    if (!input) return;
    event.preventDefault();
    reveal(input);
    input.focus({ preventScroll: true });
    input.scrollIntoView({ block: "center" });
  });

  fit.addEventListener("click", (event) => {
    const button = event.target.closest("[data-change]");
    if (!button) return;
    const input = field(button.dataset.change);
    if (!input) return;
    input.value = button.dataset.value;
    reveal(input);
    input.focus();
    soon("form");
  });

  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      form.requestSubmit(form.querySelector("[data-submit]"));
    } else if (event.key === "Enter" && event.target.matches("input")) event.preventDefault();
  });

  form.addEventListener("submit", (event) => {
    clearTimeout(timer);
    clearTimeout(saver);
    if (saving && event.submitter?.name !== "check") {
      // What is submitted is no draft any more, so the console has to be told which one it was.
      event.preventDefault();
      const by = event.submitter;
      saving.then(() => form.requestSubmit(by));
      return;
    }
    asking?.abort();
    if (event.submitter?.name === "check") {
      event.preventDefault();
      begun = true;
      look(form.elements._from.value);
    } else changed = false; // leaving the page would keep it as unfinished
  });

  // When each preset starts and what it costs takes a moment to find: the cards have room for it.
  async function lookAtPresets(list, tries) {
    const told = await fetch(list.dataset.presets, { headers: { Accept: "application/json" } })
      .then((answer) => (answer.ok ? answer.json() : null))
      .catch(() => null);
    if (!told) return; // the cards stand without it
    if (told.again && tries) setTimeout(() => lookAtPresets(list, tries - 1), told.again);
    // An answer that wants to be asked again lacks cards that may be filled already, from an earlier reading of the fleet.
    for (const line of list.querySelectorAll("[data-preset]")) {
      const said = told.presets[line.dataset.preset];
      if (said !== undefined || !told.again) line.textContent = said ?? "";
    }
  }
  lookAtPresets(document.querySelector("[data-presets]"), 20);

  // What moves away between press and release is not clicked: an answer that comes meanwhile waits, above the button that submits.
  document.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    letGo(); // a second finger: whoever waits for the first goes on
    pressed = new Promise((done) => { letGo = done; });
  }, true);
  const released = () => setTimeout(letGo);
  for (const end of ["pointerup", "pointercancel"]) document.addEventListener(end, released, true);
  // Where the release was somebody else's: a menu's, another window's.
  document.addEventListener("pointermove", (event) => event.buttons || released(), { capture: true, passive: true });
  window.addEventListener("blur", released);

  document.addEventListener("visibilitychange", () => document.hidden && save());
  if (begun) {
    look(form.elements._from.value);
    // Who was refused is at what is wrong; who begins with a template is at the button that submits it.
    const refused = form.querySelector("[data-others]");
    if (refused.hidden) form.querySelector("[data-submit]").focus({ preventScroll: true });
    else refused.focus();
  }
})();
