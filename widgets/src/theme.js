// Light or dark: what the notebook says, what the system says, or what the person chose.

export function mix(colour, other, share) {
  const parts = (c) => [1, 3, 5].map((at) => parseInt(c.slice(at, at + 2), 16));
  const [a, b] = [parts(colour), parts(other)];
  return `#${a.map((v, i) => Math.round(v * share + b[i] * (1 - share)).toString(16).padStart(2, "0")).join("")}`;
}

/** What the surroundings are: "light" or "dark". */
export function surroundings() {
  const body = document.body;
  if (body.dataset["jpThemeLight"]) return body.dataset["jpThemeLight"] === "true" ? "light" : "dark";
  const kind = body.dataset["vscodeThemeKind"];
  if (kind) return kind.includes("light") ? "light" : "dark";
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

/** Tell when the surroundings change; returns how to stop. */
export function watchSurroundings(tell) {
  const observer = new MutationObserver(tell);
  observer.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light", "data-vscode-theme-kind"] });
  const media = matchMedia("(prefers-color-scheme: dark)");
  media.addEventListener("change", tell);
  return () => {
    observer.disconnect();
    media.removeEventListener("change", tell);
  };
}

const LIGHT = {
  paper: "#ffffff", open: "#f8f8f6", open2: "#eef0ec", ink: "#1f2328", soft: "#5b6169", line: "#d3d6d0", edge: "#9aa09a", accent: "#2563b8",
  bad: "#a03a12", badback: "#fdebe2", good: "#2d6a1f", goodback: "#e6f3e0", envelope: "#e4e6e2", chosen: "#e4edf9", mark: "#b98900",
};
const DARK = {
  paper: "#1a1c1f", open: "#202327", open2: "#2a2e33", ink: "#e7e8ea", soft: "#a2a8b0", line: "#40454c", edge: "#6d747d", accent: "#7fb0f5",
  bad: "#f3a883", badback: "#3b241a", good: "#a5dc8b", goodback: "#22331c", envelope: "#2f3439", chosen: "#22344d", mark: "#e0b04f",
};
const SHADES = [0.85, 0.62, 0.73, 0.52];
const STRIPES = ["#2563b8", "#b4511a", "#3d7a21", "#7e3fb8", "#0f766e", "#94660b"];

/** Every colour that a canvas needs; those of `host`'s style sheet are set on it. */
export function palette(host, theme, families) {
  const dark = theme === "dark";
  const base = dark ? DARK : LIGHT;
  // The style sheet has them by their names, which the build makes numbers.
  Object.values(base).forEach((colour, n) => host.style.setProperty(`--${n}`, colour));
  host.style.colorScheme = host.dataset.theme = theme;
  return {
    ...base,
    families: families.map((f) => ({
      fill: dark ? mix(f.line, "#1d2024", 0.34) : f.fill,
      line: dark ? mix(f.line, "#ffffff", 0.55) : f.line,
    })),
    stripes: STRIPES.map((c) => SHADES.map((share) => (dark ? mix(mix(c, "#ffffff", 0.75), "#1d2024", share) : mix(c, "#ffffff", share)))),
    stripeLines: STRIPES.map((c) => (dark ? mix(c, "#ffffff", 0.5) : mix(c, "#000000", 0.8))),
  };
}
