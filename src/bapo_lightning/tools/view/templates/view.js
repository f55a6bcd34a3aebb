const content = JSON.parse(document.getElementById("charts").textContent);
const places = JSON.parse(document.getElementById("places").textContent);
for (const { curves } of content) for (const curve of curves) curve.x = places[curve.x];
const samples = JSON.parse(document.getElementById("samples").textContent);
// Choices and the scroll position survive a reload; some browsers keep nothing for files.
const kept = (name) => { try { return sessionStorage.getItem(`view-${name}`); } catch { return null; } };
const keep = (name, value) => { try { sessionStorage.setItem(`view-${name}`, value); } catch { /* then it starts over */ } };
const axis = document.getElementById("axis");
axis.value = kept("axis") || axis.value;
const legend = ({ curves }) => {
  const line = element("div", "", "legend");
  for (const { label, colour, dash } of curves.length > 1 ? curves : []) {
    const mark = element("i", "");
    mark.style.background = dash ? `repeating-linear-gradient(90deg,${colour} 0 3px,transparent 3px 5px)` : colour;
    line.append(mark, `${label} `);
  }
  return line;
};
const draw = () => document.querySelectorAll(".panel").forEach((figure, index) => {
  plot(figure, content[index], axis.value, axis.selectedOptions[0].textContent, false);
  figure.append(legend(content[index]));
});
axis.addEventListener("change", () => { keep("axis", axis.value); draw(); });
draw();
findOldest(samples);
const show = (select) => showTexts(select.closest("div").querySelector(".texts"), samples[select.value].rows);
for (const select of document.querySelectorAll(".update")) {
  samples.forEach(({ step }, index) => select.append(new Option(step + 1, index)));
  const newest = select.id === "now" ? samples.length - 1 : 0, wanted = kept(select.id);
  // The right side follows the run unless another update was chosen.
  select.value = wanted !== null && samples[wanted] ? wanted : newest;
  select.addEventListener("change", () => { keep(select.id, select.value); show(select); });
  show(select);
}
if (colour) {
  colour.value = kept("colour") ?? "ratio";
  const recolour = () => {
    showKey();
    document.querySelectorAll(".update").forEach(show);
  };
  colour.addEventListener("change", () => { keep("colour", colour.value); recolour(); });
  recolour();
}
scrollTo(0, kept("scroll") || 0);
addEventListener("scroll", () => keep("scroll", scrollY));
