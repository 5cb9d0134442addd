document.documentElement.classList.add("js");
const slider = document.getElementById("iteration");
if (slider) {
  const shown = document.getElementById("shown");
  const generations = [...document.querySelectorAll(".generation")];
  const show = () => {
    generations.forEach((one, i) => { one.hidden = i !== Number(slider.value); });
    shown.textContent = generations[Number(slider.value)].dataset.name;
    slider.setAttribute("aria-valuetext", shown.textContent);
  };
  slider.addEventListener("input", show);
  slider.value = slider.max;
  show();
}
const search = document.getElementById("search");
if (search) {
  const hits = document.getElementById("hits");
  const texts = [...document.querySelectorAll(".generation .texts li")];
  const plain = (text) => text.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase();
  search.addEventListener("input", () => {
    const wanted = plain(search.value.trim());
    let found = 0;
    for (const one of texts) {
      one.hidden = Boolean(wanted) && !plain(one.textContent).includes(wanted);
      found += one.hidden ? 0 : 1;
    }
    hits.textContent = wanted ? `${found} of ${texts.length}, in all iterations` : "";
  });
}
