/**
 * A process that drives sessions until it is killed, or one that resumes a single session at a word of its parent, and says what
 * came of it.
 */
import * as NodeRuntime from "@effect/platform-node/NodeRuntime"
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import { Session } from "heddle"
import { Worker } from "heddle/durable"
import * as fs from "node:fs"
import * as module from "node:module"
import { logOf, model, type Place, stored, tools } from "./work.ts"

const { resumes, store, term, world } = JSON.parse(process.argv[2]!) as Place

const say = (word: string) => Effect.sync(() => void process.send?.(word))

// A process that is killed would leave nothing to the next, which then takes twice as long to start.
const started = Effect.andThen(Effect.sync(module.flushCompileCache), say("ready"))

const worker = Worker.layer({ run: () => ({ tools: tools(world) }), term, concurrency: 20 })

/** Resumes a session as soon as the parent says anything. */
const resuming = (id: string) =>
  Effect.gen(function*() {
    // What opens the store and reads is done by then: the processes meet at the claim.
    yield* Session.load(id)
    yield* started
    yield* Effect.callback<void>((resume) => void process.once("message", () => resume(Effect.void)))
    const word = yield* Session.claim(id, { term }).pipe(
      Effect.flatMap((kept) => Session.resume(kept, { tools: tools(world) })),
      Effect.scoped,
      Effect.matchCause({
        onSuccess: ({ session }) => session.status,
        onFailure: (cause) => {
          const error = Cause.squash(cause)
          return typeof error === "object" && error !== null && "_tag" in error ? String(error._tag) : String(error)
        }
      })
    )
    yield* say(word)
  })

const logger = Logger.make(({ message }) => fs.appendFileSync(logOf(world), `${process.pid} ${String(message)}\n`))

const program = resumes === undefined
  ? Layer.launch(Layer.merge(worker, Layer.effectDiscard(started)))
  : resuming(resumes)

process.on("disconnect", () => process.exit(0))
NodeRuntime.runMain(
  program.pipe(
    Effect.provide(model),
    Effect.provide(stored(store)),
    Effect.provide(Logger.layer([logger]))
  )
)
