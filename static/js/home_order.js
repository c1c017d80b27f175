// Dragging the parts of Home: a part goes where it is dropped, and the order is kept at once. The buttons in each part do the same without this script.
(() => {
  "use strict";

  const board = document.querySelector("[data-arrange]");
  if (!board) return;
  const columns = [...board.querySelectorAll("[data-arrange-column]")];
  let dragged = null;
  let before = "";

  const partsOf = (column) => [...column.querySelectorAll(":scope > [data-arrange-part]")];
  const order = () => columns.map((column) => partsOf(column).map((part) => part.dataset.arrangePart).join(" "));

  for (const part of board.querySelectorAll("[data-arrange-part]")) part.draggable = true;

  board.addEventListener("dragstart", (event) => {
    dragged = event.target.closest?.("[data-arrange-part]");
    if (!dragged) return;
    before = order().join("|");
    event.dataTransfer.effectAllowed = "move";
    event.dataTransfer.setData("text/plain", dragged.dataset.arrangePart);
    dragged.classList.add("is-dragged");
  });

  board.addEventListener("dragover", (event) => {
    const column = event.target.closest?.("[data-arrange-column]");
    if (!dragged || !column) return;
    event.preventDefault();
    const next = partsOf(column).find((part) => part !== dragged && event.clientY < part.getBoundingClientRect().top + part.offsetHeight / 2);
    if (next) next.before(dragged);
    else column.append(dragged);
  });

  board.addEventListener("drop", (event) => dragged && event.preventDefault());

  board.addEventListener("dragend", async () => {
    if (!dragged) return;
    dragged.classList.remove("is-dragged");
    dragged = null;
    if (order().join("|") === before) return;
    const body = new FormData();
    body.set("csrfmiddlewaretoken", board.querySelector("[name=csrfmiddlewaretoken]").value);
    body.set("page", board.dataset.arrangePage);
    for (const column of order()) body.append("column", column);
    try {
      const answer = await fetch(board.dataset.arrange, { method: "POST", body, headers: { "X-Requested-With": "fetch" } });
      if (!answer.ok) throw new Error(String(answer.status));
      // The buttons of each part say where it can go from its new place.
      location.reload();
    } catch {
      window.gpufleet.shell.say("The order could not be saved. Try again when the console answers.");
    }
  });
})();
