// Figures as people read them. What there is not is "-".

export function number(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "-";
  if (Number.isInteger(value) || Math.abs(value) >= 1000) return Math.round(value).toLocaleString("en");
  return Math.abs(value) >= 0.5 * 10 ** -digits ? value.toFixed(digits) : value.toExponential(1);
}

export function bytes(count) {
  if (count === null || count === undefined) return "-";
  let unit = 0;
  for (; Math.abs(count) >= 1024 && unit < 4; unit += 1) count /= 1024;
  return `${unit ? count.toFixed(1) : Math.round(count)} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
}

export function percent(share) {
  return `${Math.round(100 * share)}%`;
}

export function seconds(value) {
  if (value < 60) return `${number(value, 1)} s`;
  const whole = Math.round(value);
  const [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const two = (part) => String(part).padStart(2, "0");
  return hours ? `${hours}:${two(minutes)}:${two(rest)}` : `${minutes}:${two(rest)}`;
}

/** Give an element this text, if it has another: what does not change costs nothing. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** An element with this text. What a model or a user wrote goes through here, and so is never read as HTML. */
export function made(name, text = "", className = "") {
  const element = document.createElement(name);
  element.textContent = text;
  if (className) element.className = className;
  return element;
}

/** With its sign, a real minus, so that nobody takes it for a dash. */
export function signed(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "-";
  if (value === 0) return "0";
  return `${value < 0 ? "\u2212" : "+"}${number(Math.abs(value), digits)}`;
}
