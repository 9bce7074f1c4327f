// The keyboard: one letter each, wherever no text is being written.

export function listen(actions) {
  const keys = {
    j: actions.next,
    k: actions.previous,
    c: actions.cancel,
    " ": actions.toggle,
    l: actions.live,
    t: actions.theme,
    "?": actions.help,
  };
  document.addEventListener("keydown", (event) => {
    const { target, key } = event;
    const writes = target.closest("textarea, input:not([type=range]), dialog");
    if (writes || event.ctrlKey || event.metaKey || event.altKey) return;
    if (key === " " && target.closest("button, a")) return; // the button is pressed
    if (key === "ArrowLeft" || key === "ArrowRight") {
      actions.step((key === "ArrowLeft" ? -1 : 1) * (event.shiftKey ? 20 : 1));
    } else if (Object.hasOwn(keys, key)) {
      keys[key]();
    } else {
      return;
    }
    event.preventDefault();
  });
}
