"use strict";
for (const button of document.querySelectorAll("nav button")) {
  button.addEventListener("click", () => {
    const shown = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(shown));
    for (const element of document.querySelectorAll(".s" + button.dataset.setting)) element.classList.toggle("off", !shown);
  });
}
const hidden = (index) => document.querySelector(`nav button[data-setting="${index}"]`).getAttribute("aria-pressed") === "false";
for (const panel of document.querySelectorAll(".panel")) {
  const numbers = JSON.parse(panel.dataset.numbers);
  const [svg, cursor, caption] = [panel.querySelector("svg"), panel.querySelector(".cursor"), panel.querySelector("figcaption")];
  const [left, top, right, bottom] = numbers.box;
  panel.addEventListener("pointerleave", () => { cursor.hidden = caption.hidden = true; });
  panel.addEventListener("pointermove", (event) => {
    const frame = svg.getBoundingClientRect();
    const scale = frame.width / svg.viewBox.baseVal.width;
    const at = (event.clientX - frame.left) / scale;
    const update = numbers.x[0] + (numbers.x[1] - numbers.x[0]) * (at - left) / (right - left);
    const series = numbers.series.filter((one) => !hidden(one.index));
    if (at < left || at > right || !series.length) { cursor.hidden = caption.hidden = true; return; }
    const rows = series.map((one) => {
      let nearest = 0;
      one.steps.forEach((step, index) => { if (Math.abs(step - update) < Math.abs(one.steps[nearest] - update)) nearest = index; });
      return { ...one, nearest, mean: one.means[nearest] };
    }).sort((a, b) => b.mean - a.mean);
    const step = rows[0].steps[rows[0].nearest];
    caption.replaceChildren(`update ${step}`);
    for (const row of rows) {
      const [line, mark] = [document.createElement("div"), document.createElement("i")];
      mark.style.background = document.querySelector(`nav button[data-setting="${row.index}"] i`).style.background;
      line.append(mark, `${row.setting}  ${row.mean}${row.widths ? " ± " + row.widths[row.nearest] : ""}`);
      caption.append(line);
    }
    const x = scale * (left + (right - left) * (step - numbers.x[0]) / (numbers.x[1] - numbers.x[0]));
    Object.assign(cursor.style, { left: `${x}px`, top: `${scale * top}px`, height: `${scale * (bottom - top)}px` });
    cursor.hidden = caption.hidden = false;
    const room = frame.width - x - caption.offsetWidth > 12;
    Object.assign(caption.style, { left: room ? `${x + 10}px` : `${x - caption.offsetWidth - 10}px`, top: `${scale * top}px` });
  });
}
