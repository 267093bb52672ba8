/** Clients that a server must withstand: requests with any header and body, principals by token, and what a store has. */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import { Adapter, type Event, Message, Session } from "heddle"
import type { Server } from "heddle/server"
import * as http from "node:http"
import type { Answered } from "./site.ts"

/** The parts of a request that a client chooses. */
export interface Sending {
  readonly method?: string
  readonly path: string
  readonly headers?: Record<string, string>
  /** The body: a value is sent as JSON, a text as it is. */
  readonly body?: unknown
}

const textOf = (body: unknown): string => typeof body === "string" ? body : JSON.stringify(body)

/** Sends a request with these headers and no others that matter, and reads the response to its end. */
export const send = (
  url: string,
  { body, headers = {}, method = body === undefined ? "GET" : "POST", path }: Sending
): Effect.Effect<Answered> =>
  Effect.callback<Answered>((resume) => {
    const { hostname, port } = new URL(url)
    const type = body === undefined ? {} : { "content-type": "application/json" }
    const request = http.request({ hostname, port, path, method, headers: { ...type, ...headers }, agent: false })
    request.on("error", (error) => resume(Effect.die(error)))
    request.on("response", (response) => {
      const chunks: Array<Buffer> = []
      response.on("data", (chunk: Buffer) => chunks.push(chunk))
      response.on("error", (error) => resume(Effect.die(error)))
      response.on("end", () =>
        resume(Effect.succeed({
          status: response.statusCode ?? 0,
          headers: new Headers(Object.entries(response.headers).map(([name, value]) => [name, String(value)])),
          text: Buffer.concat(chunks).toString("utf8")
        })))
    })
    request.end(body === undefined ? undefined : textOf(body))
    return Effect.sync(() => request.destroy())
  })

/** The code of a refusal. */
export const codeOf = ({ text }: Answered): unknown => {
  try {
    return JSON.parse(text).error?.code
  } catch {
    return undefined
  }
}

/**
 * Reads principals from tokens: `ann` may do everything, `ann:read,write` these actions, and `bob@ann` acts on the
 * sessions of `ann`. Tokens in `ended` are refused.
 */
export const byToken = (ended: ReadonlySet<string> = new Set()): Server.Authorize => ({ headers }, { action }) =>
  Effect.suspend(() => {
    const token = (headers["authorization"] ?? "").replace(/^Bearer /, "")
    if (token === "" || ended.has(token)) return Effect.fail("no such token")
    if (token === "dies") return Effect.die(new Error("the check broke"))
    const [name = "", actions] = token.split(":")
    if (actions !== undefined && !actions.split(",").includes(action)) return Effect.fail("not this action")
    const [principal = "", of] = name.split("@")
    return Effect.succeed(of === undefined ? { principal } : { principal, of })
  })

export const bearer = (token: string): Record<string, string> => ({ authorization: `Bearer ${token}` })

/** A call that the model makes. */
export interface Asked {
  readonly id: string
  readonly name: string
  readonly args?: Record<string, unknown>
}

/**
 * A model that makes the calls which the message of the user has as JSON, and answers everything else with its words. It
 * notes what it reads.
 */
export const hearing = (heard: Array<string>): Layer.Layer<Adapter.Adapter> =>
  Adapter.layer({
    stream: ({ messages }) => {
      heard.push(JSON.stringify(messages))
      const last = messages.at(-1)
      const said = last === undefined ? "" : Message.text(last) ?? ""
      const asked: ReadonlyArray<Asked> = last?.role === "user" && said.startsWith("[") ? JSON.parse(said) : []
      const calls = asked.map(({ args = {}, id, name }) => Message.toolCall(id, name, args as never))
      const text = asked.length > 0 ? "" : `Heard: ${said.slice(0, 100)}`
      const message = Message.assistant(text, calls)
      const events: ReadonlyArray<Event.AdapterEvent> = [
        { _tag: "MessageStarted", message: Message.assistant("") },
        ...(text === "" ? [] : [{ _tag: "TextDelta" as const, id: null, delta: text }]),
        ...calls.flatMap((call): ReadonlyArray<Event.AdapterEvent> => [
          { _tag: "ToolCallStarted", id: call.id, name: call.name },
          { ...call, _tag: "ToolCallCompleted", rawArguments: JSON.stringify(call.arguments) }
        ]),
        {
          _tag: "MessageCompleted",
          message,
          finishReason: calls.length > 0 ? "tool_calls" : "stop",
          metadata: {}
        }
      ] as never
      return Stream.fromIterable(events)
    }
  })

/** The same model without notes. */
export const obedient = hearing([])

/** A store in memory, and what its journals have. */
export const memory = Effect.map(Layer.build(Session.Store.layerMemory), (context) => {
  const store = Context.get(context, Session.Store)
  return {
    layer: Layer.succeedContext(context),
    contents: Effect.orDie(Effect.map(
      Stream.runCollect(store.list()),
      (listed) => listed.map(({ id, version }) => `${id} ${version}`).sort()
    )),
    records: (key: string) =>
      Effect.orDie(Effect.map(Stream.runCollect(store.read(key)), (all) => all.map(({ record }) => record)))
  }
})
