/**
 * Replays a folder of recorded transcripts through the adapters: `npm run conformance -- <folder>`. Prints one line for
 * every transcript that is read wrongly and, last, how many passed and failed; the exit code says whether all passed.
 */
import * as NodeRuntime from "@effect/platform-node/NodeRuntime"
import * as NodeServices from "@effect/platform-node/NodeServices"
import * as Console from "effect/Console"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as FileSystem from "effect/FileSystem"
import * as Logger from "effect/Logger"
import * as Fixtures from "./fixtures.ts"
import * as Replay from "./replay.ts"
import * as Report from "./report.ts"
import * as Server from "./server.ts"

const defaultFolder = "../shared/fixtures"

const program = Effect.gen(function*() {
  const [folder = defaultFolder] = process.argv.slice(2)
  const fileSystem = yield* FileSystem.FileSystem
  if (!(yield* fileSystem.exists(`${folder}/index.json`))) {
    yield* Console.error(
      `there are no recorded transcripts in ${folder}: npm run conformance -- <folder with an index.json>`
    )
    return 1
  }
  const fixtures = yield* Fixtures.read(folder)
  const verdicts = yield* Effect.forEach(
    fixtures,
    (fixture) =>
      Effect.tap(
        Replay.replay(fixture),
        (verdict) => Effect.forEach(Report.lines(verdict), (line) => Console.log(line))
      ),
    { concurrency: 4 }
  )
  for (const line of Report.summary(verdicts)) yield* Console.log(line)
  return Report.isPassed(verdicts) ? 0 : 1
}).pipe(Effect.provide([NodeServices.layer, Server.layer, Logger.layer([])]))

NodeRuntime.runMain(program, {
  teardown: (exit, onExit) => onExit(Exit.isSuccess(exit) && exit.value === 0 ? 0 : 1)
})
