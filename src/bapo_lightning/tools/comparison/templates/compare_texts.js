// Texts of two runs side by side, the first and the last at the start, each at its newest recorded update.
const texts = JSON.parse(document.getElementById("texts").textContent);
findOldest(texts.flatMap(({ updates }) => updates));
const sides = [...document.querySelectorAll("select.run")].map((run) => {
  const column = run.closest(".columns > div"), update = column.querySelector(".update");
  const show = () => showTexts(column.querySelector(".texts"), texts[run.value].updates[update.value].rows);
  const list = () => {
    const { updates } = texts[run.value];
    update.replaceChildren(...updates.map(({ step }, index) => new Option(step + 1, index)));
    update.value = updates.length - 1;
    show();
  };
  run.value = run.id === "left" ? 0 : texts.length - 1;
  run.addEventListener("change", list);
  update.addEventListener("change", show);
  return { list, show };
});
const recolour = () => { showKey(); for (const { show } of sides) show(); };
colour.addEventListener("change", recolour);
for (const { list } of sides) list();
recolour();
