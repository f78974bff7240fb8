// Bundles src/ into the Python package and records what it was built from, so that a test can tell whether it is fresh
// where there is no Node. `npm ci && npm run build`.

import { createHash } from "node:crypto";
import { mkdirSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
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

// Names of our own that no DOM object, no library and no journal has: shortened, for the size's sake.
const OURS =
  "highlighted|selection|colours|surface|stripes|stepIndex|announce|selectionOf|allocationName|fillPanel|fillTable|fillLegend|" +
  "fillSteps|showView|setView|setStep|showLine|showPlan|searchKey|nextTheme|setTheme|relay|setAll|opens|wordAt|perCapture|" +
  "workspaceBytes|graphBytes|usersOf|neighbours|outgoing|consumed|takeCaptures|takePartitions|takeFailures|peakReserved|peakLive|" +
  "freedAt|segments|blocks|arrange|perByte|sideways|touched|reveal|layoutTime|byKey|boxes|chain|marks|around|themeButton|" +
  "panelBody|asTable|pending|itemText|poolOf|capturesOf|goTo|goBack|letGo|versions|drawPool|isSelected|changed_|loose|pointerCount|" +
  "redraw|resized|listen|stripeLines|surroundings|scene|owner|lettered|linked|drawn|lanes|" +
  "captures|partitions|failures|launches|events|families|allocations|strings|frames|graphed|kernels|operations|reasons|message|" +
  "operation|store|app|views|pools|columns|runs|version|canvas|element|look|selected|found|steps|choice|recorded|" +
  "step|frame|words|capture|pool|index|address|allocation|links|graph|family|edges|offset|period|pointers|reserved|inside|counts|" +
  "chosen|state|past|panel|evidence|delta|action|alive|patching|comparison|repeats|lowered|unit|stamp|users|position|" +
  "what|scale|parent|count|total|shown|panels|bounds|moved|times|held|cache|quiet|still|empty|hint|ratio|tabs|observer|decoder|kind|" +
  "blockText|shared|touched|nodes|slot|born|died|freed|host|root|lane|grid|delta|input|sees|moved|counts|" +
  "tools|together|sides|legend|results|compared";

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
  entryPoints: [join(here, "src", "index.js")],
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  charset: "utf8",
  legalComments: "none",
  mangleProps: new RegExp(`^(${OURS})$`),
  write: false,
  plugins: [css],
});
mkdirSync(out, { recursive: true });
const text = result.outputFiles[0].text;
if (text.includes("</script")) throw new Error("the bundle would end the script element of a page");
writeFileSync(join(out, "paramgraph.js"), text);
writeFileSync(join(out, "paramgraph.sources"), `${sources()}\n`);
console.log(`paramgraph.js: ${Buffer.byteLength(text)} bytes`);
