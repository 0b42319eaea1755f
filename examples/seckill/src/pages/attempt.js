// What came of an operator's action.

const at = (id) => document.getElementById(id);

/** Says what came of an action, also to a screen reader. */
function done(text, isBad = false) {
  at("done").textContent = text;
  at("done").className = isBad ? "bad" : "";
}

/** Does something, and says what came of it. */
export async function attempt(action) {
  try {
    done(await action());
  } catch (error) {
    done(error.message, true);
  }
}
