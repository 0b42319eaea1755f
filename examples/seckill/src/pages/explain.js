// The explanation of a user's log, in a dialog.

import { request } from "./stream.js";

const at = (id) => document.getElementById(id);

export async function explain(user) {
  const explanation = await request("GET", "/admin/explain/" + encodeURIComponent(user));
  at("explanation-title").textContent = `Why ${user} is admitted or denied`;
  at("explanation-body").textContent = JSON.stringify(explanation, null, 2);
  at("explanation").showModal();
  return "";
}
