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

const css = {
  name: "css",
  setup(builder) {
    builder.onLoad({ filter: /\.css$/ }, async ({ path }) => {
      const { code } = await transform(readFileSync(path, "utf8"), { loader: "css", minify: true });
      return { contents: code, loader: "text" };
    });
  },
};

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
});
mkdirSync(out, { recursive: true });
for (const { path, text } of result.outputFiles) {
  if (text.includes("</script")) throw new Error(`${path} would end the script element of a page`);
  writeFileSync(path, text);
  console.log(`${basename(path)}: ${Buffer.byteLength(text)} bytes`);
}
writeFileSync(join(out, "paramgraph.sources"), `${sources()}\n`);
