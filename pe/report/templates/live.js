const at = (id) => document.getElementById(id);
const html = (text) => {
  const made = document.createElement("template");
  made.innerHTML = text;
  return made.content;
};
const place = (name) => {
  const there = document.querySelector(`[data-piece="${name}"]`);
  if (there) return there;
  const made = document.createElement("div");
  made.dataset.piece = name;
  at("generations").append(made);
  return made;
};
const grow = () => {
  const atEnd = slider.value === slider.max;
  const last = all(".generation").length - 1;
  slider.max = Math.max(last, 0);
  if (atEnd) slider.value = slider.max;
  at("samples").hidden = last < 0;
  slider.parentElement.hidden = last < 1;
  search.parentElement.hidden = !all(".texts").length;
  show();
  find();
};
let seen = [];
const words = (seconds) => seconds < 100 ? `${Math.ceil(seconds)} s`
  : seconds < 6000 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
const often = (rate) => rate >= 10 ? `${Math.round(rate)} samples a second`
  : rate >= 0.5 ? `${rate.toFixed(1)} samples a second` : `${(60 * rate).toPrecision(2)} samples a minute`;
const pace = () => {
  const { state, phase, done, left } = at("standing").dataset;
  if (state !== "running" || seen[0]?.phase !== phase) seen = [];
  seen.push({ phase, done: Number(done), when: performance.now() / 1000 });
  const first = seen[0], last = seen[seen.length - 1];
  const rate = (last.done - first.done) / (last.when - first.when);
  const known = state === "running" && rate > 0;
  at("pace").textContent = known ? `${often(rate)}, as this page has seen it; about ${words(left / rate)} left ` +
    "at most, private work aside." : "";
  at("link").textContent = state === "finished" ? "The run is finished." : LIVE;
  at("stop").hidden = state !== "running";
  document.querySelector("nav [href=report]").hidden = state !== "finished";
  if (state !== "running") at("told").textContent = "";
};
const LIVE = "Live: this page follows the run.";
let version = 0;
const lose = () => {
  at("link").textContent = "Not connected; this page tries again by itself. If its server has ended, pe view serves it anew.";
  at("pace").textContent = at("told").textContent = "";
  at("stop").hidden = true;
  seen = [];
  version = 0;
};
const put = (pieces) => {
  for (const [name, text] of Object.entries(pieces)) {
    const there = place(name);
    there.replaceChildren(html(text));
    const section = there.closest("section[hidden]");
    if (section && section.id !== "samples") section.hidden = !text;
  }
  grow();
  if (at("standing")) pace();
};
const follow = async () => {
  try {
    const news = await (await fetch(`pieces?since=${version}`)).json();
    if (!version) at("link").textContent = LIVE;
    version = news.version;
    if (Object.keys(news.pieces).length) put(news.pieces);
  } catch {
    lose();
  }
  setTimeout(follow, 500);
};
follow();
at("stop").addEventListener("click", async () => {
  at("told").textContent = "Asking…";
  const answer = await fetch("stop", { method: "POST" }).catch(() => null);
  at("told").textContent = answer ? await answer.text() : "Not connected.";
});
