// What is done in parts goes on by itself: the form of the next part sends itself as long as nobody stops it. Without scripts its button does.
(() => {
  "use strict";

  const form = document.querySelector("form[data-go-on]");
  if (form) form.requestSubmit();
})();
