// Builds the page into the folder named on the command line: compiled modules as they are, no bundle, so that they can be read.
import { execFileSync } from "node:child_process";
import { cpSync, rmSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const target = process.argv[2];
if (!target) throw new Error("usage: node build.mjs FOLDER");

rmSync(target, { recursive: true, force: true });
cpSync(join(here, "page"), target, { recursive: true });
execFileSync("tsc", ["-p", join(here, "tsconfig.build.json"), "--outDir", join(target, "js")], { stdio: "inherit" });
