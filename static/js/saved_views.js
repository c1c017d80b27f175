// Saving a view keeps what the list shows now, which may be something else than when the page was loaded; and the view that is shown is marked.
(() => {
  "use strict";

  const form = document.querySelector("[data-view-save]");
  if (!form) return;

  form.addEventListener("submit", () => {
    form.elements.query.value = location.search;
  });

  const said = (query) => [...new URLSearchParams(query)].filter(([key, value]) => value && key !== "after" && key !== "before").map(String).sort().join();
  function mark() {
    const shown = said(location.search);
    for (const link of document.querySelectorAll(".view-list a")) {
      if (said(link.search) === shown) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
  }
  document.addEventListener("htmx:pushedIntoHistory", mark);
  addEventListener("popstate", mark);
})();
