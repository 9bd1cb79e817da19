// Keeps the list fresh: asks for it every few seconds and replaces what has changed.
const EVERY_MS = 5000;
const live = document.getElementById("live"), news = document.getElementById("news");

function rows(part) {
  return new Map([...part.querySelectorAll("tbody tr")].map((row) => [row.querySelector("a")?.getAttribute("href"), row.textContent]));
}

async function refresh() {
  const answer = await fetch(location.href, { cache: "no-cache", headers: { Accept: "text/html" } });
  if (!answer.ok) throw new Error(answer.statusText);
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const fresh = page.getElementById("live");
  if (!fresh || fresh.innerHTML === live.innerHTML) return;
  const before = rows(live), after = rows(fresh);
  const changed = [...after].filter(([name, text]) => name && before.get(name) !== text).length;
  const focus = live.contains(document.activeElement) ? document.activeElement : null;
  const name = focus?.getAttribute("href"), across = live.querySelector(".scroll").scrollLeft;
  live.replaceChildren(...fresh.childNodes);
  live.querySelector(".scroll").scrollLeft = across;
  if (focus) ([...live.querySelectorAll("a")].find((one) => one.getAttribute("href") === name) ?? live.querySelector(".scroll")).focus();
  if (changed) news.textContent = `${changed} new or changed at ${new Date().toLocaleTimeString()}`;
}

setInterval(() => {
  if (document.hidden) return;
  refresh().catch(() => { news.textContent = "The page's server does not answer; trying again."; });
}, EVERY_MS);
