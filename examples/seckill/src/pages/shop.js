// The customer's page: it counts down to the opening, and after a 429 to the next attempt.

const sale = JSON.parse(document.getElementById("sale").textContent);
const at = (id) => document.getElementById(id);
const seckill = () => "/seckill/" + encodeURIComponent(at("sku").value);

/** When the wait of each user id ends, on the page's clock. */
const waits = new Map();
let opensAt = null;
let isSending = false;

for (const sku of sale.skus) at("sku").add(new Option(sku));
at("user").value = "guest-" + Math.random().toString(36).slice(2, 8);

/** Shows a text, which a screen reader reads out. */
function say(text, kind) {
  at("answer").textContent = text;
  at("answer").className = kind;
}

function clockTime(seconds) {
  const parts = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60, seconds % 60];
  return parts.map((part) => String(part).padStart(2, "0")).join(":").replace(/^00:0?/, "");
}

const secondsUntil = (time) => Math.ceil((time - performance.now()) / 1000);

/** Reads the stock, and when the sale opens: by the server's clock, whatever this one says. */
async function showStock() {
  try {
    const sent = performance.now();
    const response = await fetch(seckill());
    if (!response.ok) return;
    const { stock, remaining, opens_in_ms } = await response.json();
    at("count").textContent = remaining + " of " + stock;
    Object.assign(at("meter"), { max: stock, value: remaining });
    const wasClosed = opensAt !== null;
    // From before the request: the page never takes the sale for closed too long.
    opensAt = opens_in_ms === null ? null : sent + opens_in_ms;
    if (wasClosed && opensAt === null) say("The sale is open.", "good");
    render();
  } catch { /* The next round may succeed. */ }
}

/** Shows what there is to wait for. The button waits with the customer: an earlier order is refused. */
function render() {
  const user = at("user").value;
  const left = waits.has(user) ? secondsUntil(waits.get(user)) : 0;
  if (waits.has(user) && left <= 0) {
    waits.delete(user);
    say("You can try again now.", "good");
  }
  const opening = opensAt === null ? 0 : secondsUntil(opensAt);
  let text = "";
  if (opensAt !== null) text = opening > 0 ? `Opens in ${clockTime(opening)}` : "Opening …";
  else if (left > 0) text = `You can try again in ${clockTime(left)}`;
  if (at("timer").textContent !== text) at("timer").textContent = text;
  const isOff = text !== "" || isSending;
  if (at("buy").disabled === isOff) return;
  at("buy").disabled = isOff;
  // A button that is disabled loses the focus.
  if (!isOff && document.activeElement === document.body) at("buy").focus();
}

async function order() {
  const user = at("user").value;
  // fetch takes a header value as one byte a character.
  const id = String.fromCharCode(...new TextEncoder().encode(user));
  const response = await fetch(seckill() + "/orders", { method: "POST", headers: { "x-user-id": id } });
  const body = await response.json();
  const wait = Number(response.headers.get("retry-after"));
  if (response.status === 201) {
    say(`Yours! Order ${body.order_id}.`, "good");
  } else if (wait > 0) {
    // Retry-After is true: there is no use in an earlier attempt.
    waits.set(user, performance.now() + wait * 1000);
    const title = response.status === 429 ? "Too many requests" : body.title;
    say(`${title}. You can try again in ${clockTime(wait)}.`, "bad");
  } else {
    say(body.title + (body.order_id ? `: ${body.order_id}` : "") + ".", "bad");
  }
}

at("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  if (at("buy").disabled) return;
  isSending = true;
  render();
  try {
    await order();
  } catch (error) {
    say("The shop did not answer: " + error.message, "bad");
  }
  isSending = false;
  render();
  showStock();
});

at("sku").addEventListener("change", showStock);
at("user").addEventListener("input", render);
setInterval(render, 200);
setInterval(showStock, 1000);
showStock();
