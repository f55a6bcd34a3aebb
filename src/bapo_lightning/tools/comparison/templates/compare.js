const content = JSON.parse(document.getElementById("charts").textContent);
const off = new Set();
const [axis, single] = [document.getElementById("axis"), document.getElementById("single")];
const hide = () => { for (const index of off) for (const element of document.querySelectorAll(`.s${index}`)) element.classList.add("off"); };
const draw = () => {
  const title = axis.selectedOptions[0].textContent;
  document.querySelectorAll(".panel").forEach((figure, index) => plot(figure, content[index], axis.value, title, single.checked));
  hide();
};
for (const button of document.querySelectorAll("nav button")) {
  button.addEventListener("click", () => {
    const [index, shown] = [button.dataset.setting, button.getAttribute("aria-pressed") !== "true"];
    button.setAttribute("aria-pressed", String(shown));
    if (shown) off.delete(index); else off.add(index);
    for (const element of document.querySelectorAll(`.s${index}`)) element.classList.remove("off");
    hide();
  });
}
axis.addEventListener("change", draw);
single.addEventListener("change", draw);
draw();
