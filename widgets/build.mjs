// Bundles src/ into the Python package and records what it was built from, so that a test can tell whether it is fresh
// where there is no Node. `npm ci && npm run build`.

import { createHash } from "node:crypto";
import { mkdirSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build, transform } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const out = join(process.argv[2] || join(here, "..", "paramgraph_kit", "explore", "static"));

/** One hash over the names and texts of everything that the bundle depends on. */
function sources() {
  const files = readdirSync(join(here, "src")).map((name) => `src/${name}`);
  const hash = createHash("sha256");
  for (const name of [...files, "build.mjs", "package.json"].sort()) {
    hash.update(`${name}\n`);
    hash.update(readFileSync(join(here, name)));
  }
  return hash.digest("hex");
}

/** The names of colours in the order of theme.js, which sets them by number. */
const COLOURS = [.../const LIGHT = \{([^}]*)\}/.exec(readFileSync(join(here, "src", "theme.js"), "utf8"))[1].matchAll(/(\w+):/g)].map(([, name]) => name);

const css = {
  name: "css",
  setup(builder) {
    builder.onLoad({ filter: /\.css$/ }, async ({ path }) => {
      const { code } = await transform(readFileSync(path, "utf8"), { loader: "css", minify: true });
      const numbered = code.replace(/var\(--(\w+)\)/g, (whole, name) => (COLOURS.includes(name) ? `var(--${COLOURS.indexOf(name)})` : whole));
      return { contents: numbered, loader: "text" };
    });
  },
};

/** Names of properties that the platform has, as its own types tell: TypeScript brings them. */
function platform() {
  const folders = readdirSync(join(here, "node_modules", "@typescript")).map((name) => join(here, "node_modules", "@typescript", name, "lib"));
  const known = new Set();
  for (const folder of folders)
    for (const file of readdirSync(folder)) {
      if (!/^lib\..*d\.ts$/.test(file)) continue;
      for (const [name] of readFileSync(join(folder, file), "utf8").matchAll(/\b[a-z]+[A-Z]\w*/g)) known.add(name);
    }
  if (!known.has("addEventListener")) throw new Error("TypeScript's types of the platform were not found");
  return known;
}

const PLAIN = (
  "accent announce app around arrange axis bad badback base blocks bound chain choice colours columns compared " +
  "consumed edge element empty envelope family finder fit flows good goodback grouped heads highlighted hint holders " +
  "ink inside legend linked loose mark marked moment neighbours none open2 ordered outgoing panel paper past pending " +
  "pieces player pointers pools quiet range ratio reach relay remark reserved results reveal sees segments selection " +
  "sideways slots soft stage stamp stepper store stripes surface tables tabs tenant together tools touched turned " +
  "turning what within zoom"
).split(" ");

/** Names of properties that are ours alone, which may be shortened: nothing from outside is writtenLikeThis or in PLAIN. */
function ours() {
  const known = platform();
  const found = new Set(PLAIN);
  for (const file of readdirSync(join(here, "src")).filter((name) => name.endsWith(".js")))
    for (const [name] of readFileSync(join(here, "src", file), "utf8").matchAll(/\b[a-z]+[A-Z]\w*/g)) if (!known.has(name)) found.add(name);
  return new RegExp(`^(?:${[...found].sort().join("|")})$`);
}

const result = await build({
  entryPoints: { paramgraph: join(here, "src", "index.js"), viewer: join(here, "src", "viewer.js") },
  outdir: out,
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  charset: "utf8",
  legalComments: "none",
  write: false,
  plugins: [css],
  mangleProps: ours(),
});
mkdirSync(out, { recursive: true });
for (const { path, text } of result.outputFiles) {
  if (text.includes("</script")) throw new Error(`${path} would end the script element of a page`);
  writeFileSync(path, text);
  console.log(`${basename(path)}: ${Buffer.byteLength(text)} bytes`);
}
writeFileSync(join(out, "paramgraph.sources"), `${sources()}\n`);
