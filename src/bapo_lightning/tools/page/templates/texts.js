// Recorded texts: each response with its reward and advantage, its tokens coloured by what `#colour` names.
const element = (name, text, kind) => Object.assign(document.createElement(name), { textContent: text, className: kind || "" });
const signed = (value) => (value > 0 ? "+" : "") + value.toFixed(2);
// Colours of tokens: grey to violet by age; orange below and blue above ratio 1 or advantage 0.
const colour = document.getElementById("colour");
let oldest = 1;
const findOldest = (samples) => {
  for (const { rows } of samples) for (const { tokens } of rows) for (const age of tokens ? tokens.age : []) oldest = Math.max(oldest, age);
};
const tint = (value) => `rgba(${value < 0 ? "213, 94, 0" : "0, 114, 178"}, ${0.6 * Math.min(1, Math.abs(value))})`;
const shades = {
  age: ({ age }) => `rgba(120, 60, 160, ${0.55 * age / oldest})`,
  ratio: ({ ratio }) => tint(Math.log(ratio) / Math.log(3)),
  advantage: ({ advantage }) => tint(advantage / 2),
};
const keys = {
  "": () => "",
  age: () => `violet: up to ${oldest} updates old`,
  ratio: () => "blue: more probable than when it was sampled, orange: less; full at a factor of 3",
  advantage: () => "blue: positive, orange: negative",
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
const showTexts = (texts, rows) => {
  texts.replaceChildren();
  let problem = null, depths = [0];
  for (const row of rows) {
    if (row.problem !== problem) {
      texts.append(element("p", row.prompt, "problem"));
      texts.lastChild.append(element("small", ` gold answer: ${row.gold}`));
    }
    problem = row.problem;
    const box = answer(row);
    texts.append(box);
    if (!row.branch) { depths = [0]; continue; }
    const isPart = row.parent !== null && row.parent !== undefined;
    depths[row.branch] = isPart ? depths[row.parent] + 1 : 0;
    box.style.marginLeft = `${2 * depths[row.branch]}em`;
    const context = element("details", "");
    context.append(element("summary", isPart ? `branch ${row.branch}, of branch ${row.parent}` : `branch ${row.branch}, of another prompt`), element("pre", row.prompt));
    box.prepend(context);
  }
};
const showKey = () => {
  document.getElementById("key").textContent = keys[colour.value]() + (colour.value ? "; dotted: the gradient was clipped; pale: not trained on" : "");
};
{% if has_turns %}
{% include "turns.js" %}

{% endif %}
