// ESLint, because every platform and every mirror of the registry has it whole: it is JavaScript, without binaries.
// What types can tell is left to tsc; how lines are broken, to whoever writes them.

import js from "@eslint/js";
import globals from "globals";

export default [
  js.configs.recommended,
  {
    rules: {
      eqeqeq: "error", // "0" == 0 has cost enough people enough evenings
      "no-implicit-coercion": ["error", { allow: ["!!"] }],
      "no-param-reassign": "error",
      "no-shadow": ["error", { builtinGlobals: false }],
      "no-unused-vars": ["error", { argsIgnorePattern: "^_" }],
      "no-var": "error",
      "object-shorthand": "error",
      "prefer-const": "error",
      "prefer-template": "error",
    },
  },
  { files: ["src/**"], languageOptions: { globals: globals.browser } },
  { files: ["test/**", "*.mjs"], languageOptions: { globals: globals.nodeBuiltin } },
];
