/**
 * effect/ai: `LanguageModel.streamText` with a toolkit. It makes one turn; the loop around it, which hands the reply back as
 * history, is the user's, and written as its documentation does.
 */
import * as LanguageModel from "effect/ai/LanguageModel"
import * as Prompt from "effect/ai/Prompt"
import type * as Response from "effect/ai/Response"
import * as Tool from "effect/ai/Tool"
import * as Toolkit from "effect/ai/Toolkit"
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import type { Arguments, Implementation, Run, ToolSpecification, Value } from "../loop.ts"
import type { Chunk, Model } from "../model.ts"

const finish = (reason: "stop" | "tool-calls"): Response.StreamPartEncoded => ({
  type: "finish",
  reason,
  usage: {
    inputTokens: { uncached: undefined, total: 1, cacheRead: undefined, cacheWrite: undefined },
    outputTokens: { total: 1, text: 1, reasoning: undefined }
  },
  response: undefined
})

/** One reply as encoded parts. */
class Reading {
  private readonly calls = new Map<string, { readonly name: string; json: string }>()
  private isTextOpen = false

  parts(chunk: Chunk): ReadonlyArray<Response.StreamPartEncoded> {
    switch (chunk.type) {
      case "text": {
        const delta: Response.StreamPartEncoded = { type: "text-delta", id: "text", delta: chunk.delta }
        if (this.isTextOpen) return [delta]
        this.isTextOpen = true
        return [{ type: "text-start", id: "text" }, delta]
      }
      case "callStarted":
        this.calls.set(chunk.id, { name: chunk.name, json: "" })
        return [{ type: "tool-params-start", id: chunk.id, name: chunk.name }]
      case "callArguments":
        this.calls.get(chunk.id)!.json += chunk.fragment
        return [{ type: "tool-params-delta", id: chunk.id, delta: chunk.fragment }]
      case "callCompleted": {
        const { json, name } = this.calls.get(chunk.id)!
        return [
          { type: "tool-params-end", id: chunk.id },
          { type: "tool-call", id: chunk.id, name, params: JSON.parse(json) }
        ]
      }
    }
  }

  ended(): ReadonlyArray<Response.StreamPartEncoded> {
    const last = finish(this.calls.size > 0 ? "tool-calls" : "stop")
    return this.isTextOpen ? [{ type: "text-end", id: "text" }, last] : [last]
  }
}

/** A read of the wire stays one array of parts, and closing the stream closes the connection. */
const parts = (model: Model, messages: number): Stream.Stream<Response.StreamPartEncoded> =>
  Stream.unwrap(Effect.map(
    Effect.acquireRelease(
      Effect.sync(() => model.request(messages)),
      (reply) => Effect.sync(() => void reply.return?.())
    ),
    (reply) => {
      const reading = new Reading()
      let isOver = false
      const next = Effect.map(Effect.promise(() => reply.next()), ({ value }) => {
        isOver = value === undefined
        const parts = value === undefined ? reading.ended() : value.flatMap((chunk) => reading.parts(chunk))
        return parts as [Response.StreamPartEncoded, ...Array<Response.StreamPartEncoded>]
      })
      return Stream.fromPull(Effect.succeed(Effect.suspend(() => isOver ? Cause.done() : next)))
    }
  ))

const fields = { number: Schema.Finite, string: Schema.String }

const toTool = ({ description, name, parameters }: ToolSpecification) =>
  Tool.make(name, {
    description,
    parameters: Schema.Struct(Object.fromEntries(Object.entries(parameters).map(([key, type]) => [key, fields[type]]))),
    success: Schema.Struct({ value: Schema.Finite })
  })

const handler = ({ body }: ToolSpecification) => (args: Arguments) =>
  body.type === "synchronous"
    ? Effect.sync(() => body.call(args))
    : Effect.promise((signal) => body.call(args, signal))

type Part = { readonly type: string; readonly delta?: string; readonly result?: unknown }

const tell = (run: Run, part: Part): boolean => {
  if (part.type === "text-delta") return run.onText(part.delta ?? "")
  if (part.type === "tool-result") run.onResult(part.result as Value)
  else run.onEvent()
  return true
}

type Reply = ReadonlyArray<Response.AllParts<any>>

/** Reads a reply, and gives what of it becomes history: nothing, if the reader may leave. */
const read = (run: Run, parts: Stream.Stream<Reply[number]>): Effect.Effect<Reply> => {
  if (run.isLeftEarly === true) {
    return Effect.as(Stream.runForEachWhile(parts, (part) => Effect.sync(() => tell(run, part as Part))), [])
  }
  const reply: Array<Reply[number]> = []
  const reading = Stream.runForEachArray(parts, (some) =>
    Effect.sync(() => {
      for (const part of some) {
        reply.push(part)
        tell(run, part as Part)
      }
    }))
  return Effect.as(reading, reply)
}

/** One turn after the other, until one calls nothing. */
const program = (
  run: Run,
  maxTurns: number,
  turn: (history: Prompt.Prompt) => Stream.Stream<Reply[number]>
): Effect.Effect<void> =>
  Effect.gen(function*() {
    let history = Prompt.make(run.prompt)
    for (let index = 0; index < maxTurns; index++) {
      const reply = yield* read(run, turn(history))
      if (!reply.some(({ type }) => type === "tool-call")) return
      history = Prompt.concat(history, Prompt.fromResponseParts(reply))
    }
  })

export const implementation: Implementation = {
  name: "effect/ai",
  kind: "peer",
  guarantees: [],
  make: (specifications, maxTurns) => {
    const toolkit = Toolkit.make(...specifications.map(toTool))
    const handlers = Effect.runSync(
      toolkit.toHandlers(Object.fromEntries(specifications.map((tool) => [tool.name, handler(tool)])) as never)
    )
    return {
      run: async (run) => {
        const languageModel = LanguageModel.make({
          generateText: () => Effect.die(new Error("this model only streams")),
          streamText: ({ prompt }) => parts(run.model, prompt.content.length)
        })
        const turn = (prompt: Prompt.Prompt) =>
          LanguageModel.streamText({ prompt, toolkit }) as unknown as Stream.Stream<Reply[number]>
        await Effect.runPromise(
          program(run, maxTurns, turn).pipe(
            Effect.provideServiceEffect(LanguageModel.LanguageModel, languageModel),
            Effect.provideContext(handlers)
          ) as Effect.Effect<void>,
          run.signal === undefined ? {} : { signal: run.signal }
        )
        return {}
      }
    }
  }
}
