// A response that an environment answered, turn by turn. Coloured tokens come from `written`, distributed to their turns.
const mark = (text, kind) => element("span", text, `mark ${kind}`);
const marks = ({ calls, errors, void: isVoid }) => [
  calls ? [mark(`${calls} ${calls === 1 ? "call" : "calls"}`, "")] : [],
  errors ? [mark(`${errors} failed`, "fault")] : [],
  isVoid ? [mark("neither call nor answer", "fault")] : [],
].flat();
const turnBox = (row, turn, index, text) => {
  const box = element("div", "", `turn ${turn.by}`), found = marks(turn);
  if (turn.by === "environment") box.title = "environment";
  else if (row.turns.length > 1 || found.length) box.append(element("small", `turn ${1 + index / 2}`), ...found);
  box.append(text);
  return box;
};
const conversation = (row) => {
  if (!colour.value || !row.tokens) return row.turns.map((turn, index) => turnBox(row, turn, index, element("pre", turn.text)));
  const pieces = [...written(row).children], places = [0, ...row.tokens.feedback_at];
  // A long response is shown without its last tokens, and without the turns that contain them.
  return row.turns.slice(0, 2 * places.length - 1).map((turn, index) => {
    if (turn.by === "environment") return turnBox(row, turn, index, element("pre", turn.text));
    const text = element("pre", "", "tokens");
    text.append(...pieces.slice(places[index / 2], places[index / 2 + 1]));
    return turnBox(row, turn, index, text);
  });
};
