document.documentElement.classList.add("js");
const all = (selector) => [...document.querySelectorAll(selector)];
const slider = document.getElementById("iteration");
const show = () => {
  const generations = all(".generation");
  generations.forEach((one, i) => { one.hidden = i !== Number(slider.value); });
  document.getElementById("shown").textContent = generations[Number(slider.value)]?.dataset.name ?? "";
  slider.setAttribute("aria-valuetext", document.getElementById("shown").textContent);
};
if (slider) {
  slider.addEventListener("input", show);
  slider.value = slider.max;
  show();
}
const search = document.getElementById("search");
const find = () => {
  const plain = (text) => text.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase();
  const wanted = plain(search.value.trim());
  const texts = all(".generation .texts li");
  let found = 0;
  for (const one of texts) {
    one.hidden = Boolean(wanted) && !plain(one.textContent).includes(wanted);
    found += one.hidden ? 0 : 1;
  }
  document.getElementById("hits").textContent = wanted ? `${found} of ${texts.length}, in all iterations` : "";
};
if (search) search.addEventListener("input", find);
const lines = all("#rows tbody tr");
const SHOWN = 20;
let topLine = 0;
const turn = (by) => {
  topLine += by;
  lines.forEach((line, i) => { line.hidden = i < topLine || i >= topLine + SHOWN; });
  const end = Math.min(topLine + SHOWN, lines.length);
  document.getElementById("place").textContent = `Rows ${topLine + 1} to ${end} of ${lines.length}`;
  document.getElementById("earlier").disabled = topLine === 0;
  document.getElementById("later").disabled = end === lines.length;
};
if (lines.length) {
  document.getElementById("earlier").addEventListener("click", () => turn(-SHOWN));
  document.getElementById("later").addEventListener("click", () => turn(SHOWN));
  turn(0);
}
const large = document.body.appendChild(document.createElement("dialog"));
const enlarge = (event) => {
  if (large.open) return large.close();
  const small = event.target;
  if (!small.matches("main img")) return;
  large.replaceChildren(small.cloneNode());
  large.style.setProperty("--ratio", small.width / small.height);
  large.showModal();
};
document.addEventListener("click", enlarge);
document.addEventListener("keydown", (event) => { if (event.key === "Enter") enlarge(event); });
