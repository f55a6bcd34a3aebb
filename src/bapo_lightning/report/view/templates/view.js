const content = JSON.parse(document.getElementById("charts").textContent);
const places = JSON.parse(document.getElementById("places").textContent);
for (const { curves } of content) for (const curve of curves) curve.x = places[curve.x];
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
// Colours of tokens: grey to violet by age; orange below and blue above ratio 1 or advantage 0.
const colour = document.getElementById("colour");
const ages = samples.flatMap(({ rows }) => rows.flatMap(({ tokens }) => (tokens ? tokens.age : [])));
const oldest = ages.reduce((most, age) => Math.max(most, age), 1);
const tint = (value) => `rgba(${value < 0 ? "213, 94, 0" : "0, 114, 178"}, ${0.6 * Math.min(1, Math.abs(value))})`;
const shades = {
  age: ({ age }) => `rgba(120, 60, 160, ${0.55 * age / oldest})`,
  ratio: ({ ratio }) => tint(Math.log(ratio) / Math.log(3)),
  advantage: ({ advantage }) => tint(advantage / 2),
};
const keys = {
  "": "",
  age: `violet: up to ${oldest} updates old`,
  ratio: "blue: more probable than when it was sampled, orange: less; full at a factor of 3",
  advantage: "blue: positive, orange: negative",
};
const written = (row) => {
  const { tokens } = row;
  const box = element("pre", "", "tokens");
  tokens.text.forEach((text, index) => {
    const place = index - tokens.first, piece = element("span", text, place < 0 ? "untrained" : "");
    box.append(piece);
    if (place < 0 || place >= tokens.ratio.length) return;
    const known = { age: tokens.age[place], ratio: tokens.ratio[place], advantage: row.advantage };
    piece.style.background = shades[colour.value](known);
    piece.classList.toggle("clipped", tokens.clipped[place] === 1);
    piece.title = `ratio ${known.ratio}, age ${known.age}, advantage ${signed(known.advantage)}${tokens.clipped[place] ? ", clipped" : ""}`;
  });
  return box;
};
const answer = (row) => {
  const box = element("div", "", `answer ${row.status}`);
  const versions = [...new Set(row.versions)];
  const policy = versions.length > 1 ? `policies ${versions[0]} to ${versions.at(-1)}` : `policy ${versions[0]}`;
  box.append(element("small", `${row.status}, reward ${row.reward.toFixed(2)}, advantage ${signed(row.advantage)}, ${row.num_tokens} tokens, ${row.finish}, ${policy}`));
{% if has_turns %}
  if (row.turns) { box.append(...conversation(row)); return box; }
{% endif %}
  box.append(colour && colour.value && row.tokens ? written(row) : element("pre", row.response));
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
if (colour) {
  colour.value = kept("colour") ?? "ratio";
  const recolour = () => {
    document.getElementById("key").textContent = keys[colour.value] + (colour.value ? "; dotted: the gradient was clipped; pale: not trained on" : "");
    document.querySelectorAll(".update").forEach(show);
  };
  colour.addEventListener("change", () => { keep("colour", colour.value); recolour(); });
  recolour();
}
scrollTo(0, kept("scroll") || 0);
addEventListener("scroll", () => keep("scroll", scrollY));
