// Ends a script that an older Node cannot run, with the way out. It is written for such a Node.
"use strict"

const [major, minor] = process.versions.node.split(".").map(Number)

if (major < 22 || (major === 22 && minor < 18)) {
  process.stderr.write(
    `This needs Node 22.18 or later, and runs on Node ${process.versions.node}. The package "node" of this repository has one, `
      + "which \"npm ci\" installs unless install scripts are switched off. Install it, and run the same command again:\n\n"
      + "  npm rebuild node --ignore-scripts=false\n"
  )
  process.exit(1)
}
