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
