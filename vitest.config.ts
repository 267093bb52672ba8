import { defineConfig } from "vitest/config"

// Tests read the sources through the package's own name, so that they see what a user sees.
const conditions = ["source"]

export default defineConfig({
  resolve: { conditions },
  ssr: { resolve: { conditions } },
  test: {
    include: ["test/**/*.test.ts"],
    globalSetup: ["test/support/postgresRun.ts", "test/support/studioRun.ts"],
    // Every test that keeps a session is observed, and each one of the core gives back what it has taken.
    setupFiles: ["test/support/observed.ts", "test/support/held.ts"],
    // Tests share nothing that a file could change for another, and loading the library once per file took most of the time.
    isolate: false,
    // The laws take most of the time, and nothing but the processor.
    maxWorkers: "100%",
    // Tests wait for events. Their bound is for one that never comes, on the busiest machine.
    testTimeout: 180_000,
    hookTimeout: 180_000,
    server: {
      deps: {
        inline: [
          // The examples of the documentation are written there as programs, and are read like tests.
          /heddle-examples/,
          // Some of these, too, are published with their sources, which Node does not read from a package.
          /node_modules\/(@ai-sdk|@modelcontextprotocol|ai|ai-v\d|ai-sdk-v\d|eventsource|eventsource-parser)\//
        ]
      }
    }
  }
})
