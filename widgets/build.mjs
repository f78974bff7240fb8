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
  "action|address|alive|allocation|allocationName|allocations|announce|app|around|arrange|asTable|blockText|" +
  "blocks|born|bounds|boxes|byKey|bytes|cache|call|canvas|capture|captures|capturesOf|cause|chain|choice|chosen|" +
  "close|code|colours|columns|compared|comparison|consumed|count|counts|decoder|delta|died|drawPool|drawn|edges|" +
  "element|empty|events|evidence|failures|families|family|file|fillLegend|fillPanel|fillSteps|found|frame|frames|" +
  "freed|freedAt|goBack|goTo|graph|graphBytes|graphed|grid|held|highlighted|hint|host|hover|index|input|inside|" +
  "isSelected|itemText|kernels|kind|lane|launches|layoutTime|legend|letGo|lettered|linked|links|listen|live|look|" +
  "loose|lowered|mark|marks|message|moved|neighbours|nextTheme|nodes|observer|offset|opens|operation|operations|" +
  "outgoing|owner|panel|panelBody|panels|parent|partitions|past|patching|peakLive|peakReserved|pending|perByte|" +
  "perCapture|period|pointerCount|pointers|pool|poolOf|pools|position|quiet|ratio|reasons|recorded|redraw|relay|" +
  "repeats|reserved|results|reveal|root|runs|scale|scene|searchKey|sees|segments|select|selected|selection|" +
  "selectionOf|setAll|setStep|setTheme|setView|shared|showLine|showPlan|showView|shown|sides|sideways|slot|stamp|" +
  "state|step|stepIndex|steps|still|store|strings|stripeLines|stripes|surface|surroundings|tabs|takeCaptures|" +
  "takeFailures|takePartitions|text|themeButton|time|times|together|tools|total|touched|unit|update|used|" +
  "users|usersOf|version|views|what|wordAt|words|workspaceBytes";

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
