/**
 * Folders for the agent to work in: real ones, made for a test and gone with its scope.
 */
import * as NodeServices from "@effect/platform-node/NodeServices"
import * as Effect from "effect/Effect"
import * as FileSystem from "effect/FileSystem"
import type * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Path from "effect/Path"
import * as Stream from "effect/Stream"
import { Event, type Message, ToolRunner } from "heddle"
import * as Tools from "../../scratchpad/agent/tools.ts"
import * as Workspace from "../../scratchpad/agent/workspace.ts"

export type Files = Readonly<Record<string, string>>

/** A folder with the given files. */
export const folder = (files: Files) =>
  Effect.gen(function*() {
    const fs = yield* FileSystem.FileSystem
    const path = yield* Path.Path
    const root = yield* fs.realPath(yield* fs.makeTempDirectoryScoped({ prefix: "agent-" }))
    for (const [name, text] of Object.entries(files)) {
      yield* fs.makeDirectory(path.dirname(path.join(root, name)), { recursive: true })
      yield* fs.writeFileString(path.join(root, name), text)
    }
    return root
  })

/** A small shop: three languages, a document, and something to find in each of them. */
export const shop = {
  "README.md": "# Shop\n\nSells lamps to sailors.\n",
  "src/billing.ts":
    "import { net } from \"./net.ts\"\n\nexport const taxRate = 0.2\n\nexport const gross = (item) =>\n" +
    "  net(item) * (1 + taxRate)\n",
  "src/mail.py": "def send_welcome(user):\n    smtp.deliver(user.address, WELCOME)\n\n\ndef send_invoice(user):\n" +
    "    smtp.deliver(user.address, INVOICE)\n",
  "src/stock.ts": "export function reserve(lamp) {\n  if (lamp.count === 0) throw new Error(\"sold out\")\n}\n"
}

/** The workspace of a folder. Notes are kept where it says, if it says so. */
export const workspace = (root: string, notes?: string) =>
  Workspace.layer({ folder: root, notes: Option.fromUndefinedOr(notes) })

/** Runs calls of the agent's tools, as a model would make them: the answers in call order, and every event. */
export const run = (root: string, calls: ReadonlyArray<Message.ToolCall>, notes?: string) =>
  Effect.gen(function*() {
    const events = yield* Stream.runCollect(ToolRunner.stream(calls, Tools.all)).pipe(
      Effect.provide(workspace(root, notes))
    )
    const encoded = events.filter(Event.guards.ToolResultEncoded)
    const answers = calls.map((call): any =>
      JSON.parse(String(encoded.find((event) => event.id === call.id)?.content ?? "null"))
    )
    return { answers, events }
  })

/** The file system and the paths of this machine. */
export const services: Layer.Layer<NodeServices.NodeServices> = NodeServices.layer
