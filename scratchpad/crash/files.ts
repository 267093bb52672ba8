/** The program that is killed, over a folder of plain files: the same, one process after the other. */
import * as NodeServices from "@effect/platform-node/NodeServices"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { FileStore } from "heddle/files"
import { KillPoint } from "heddle/testing"
import { program, services } from "./session.ts"

const store = Layer.provide(FileStore.layer({ folder: `${KillPoint.folder()}/sessions` }), NodeServices.layer)

await Effect.runPromise(Effect.provide(program, services(store)))
