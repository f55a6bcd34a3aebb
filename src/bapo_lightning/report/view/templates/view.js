const content = JSON.parse(document.getElementById("charts").textContent);
const samples = JSON.parse(document.getElementById("samples").textContent);
const element = (name, text, kind) => Object.assign(document.createElement(name), { textContent: text, className: kind || "" });
// Choices and the place on the page outlive a reload; some browsers keep nothing for files.
const kept = (name) => { try { return sessionStorage.getItem(`view-${name}`); } catch { return null; } };
const keep = (name, value) => { try { sessionStorage.setItem(`view-${name}`, value); } catch { /* then it starts anew */ } };
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
const signed = (value) => (value > 0 ? "+" : "") + value.toFixed(2);
const answer = (row) => {
  const box = element("div", "", `answer ${row.status}`);
  const versions = [...new Set(row.versions)];
  const policy = versions.length > 1 ? `policies ${versions[0]} to ${versions.at(-1)}` : `policy ${versions[0]}`;
  box.append(element("small", `${row.status}, reward ${row.reward.toFixed(2)}, advantage ${signed(row.advantage)}, ${row.num_tokens} tokens, ${row.finish}, ${policy}`));
  box.append(element("pre", row.response));
  return box;
};
const show = (select) => {
  const texts = select.closest("div").querySelector(".texts"), { rows } = samples[select.value];
  texts.replaceChildren();
  let problem = null;
  for (const row of rows) {
    if (row.problem !== problem) texts.append(element("p", `${row.prompt}   [${row.gold}]`, "problem"));
    problem = row.problem;
    texts.append(answer(row));
  }
};
for (const select of document.querySelectorAll(".update")) {
  samples.forEach(({ step }, index) => select.append(new Option(step + 1, index)));
  const newest = select.id === "now" ? samples.length - 1 : 0, wanted = kept(select.id);
  // The right side follows the run unless another update was chosen.
  select.value = wanted !== null && samples[wanted] ? wanted : newest;
  select.addEventListener("change", () => { keep(select.id, select.value); show(select); });
  show(select);
}
scrollTo(0, kept("scroll") || 0);
addEventListener("scroll", () => keep("scroll", scrollY));
