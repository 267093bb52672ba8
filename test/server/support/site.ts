/** A server of agents on the loopback interface, and a client of it. */
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as HttpServer from "effect/http/HttpServer"
import * as Layer from "effect/Layer"
import * as Scope from "effect/Scope"
import { type Adapter, type Event, Session } from "heddle"
import { Worker } from "heddle/durable"
import { type Agent, Server } from "heddle/server"
import type { Site as Parts } from "../../../src/server/internal/routes.ts"
import { type Driver, requireNothing } from "./ledger.ts"

/** The answer to a request. */
export interface Answered {
  readonly status: number
  readonly headers: Headers
  readonly text: string
}

/** Something that an event stream sent. */
export interface Sent {
  readonly id?: string
  readonly event?: string
  readonly data: any
}

export interface Site {
  readonly url: string
  readonly ask: (method: string, path: string, body?: unknown, headers?: Record<string, string>) => Promise<Answered>
  /** Opens an event stream, which is read as it comes. */
  readonly open: (
    method: string,
    path: string,
    body?: unknown,
    headers?: Record<string, string>
  ) => Promise<Reader>
}

/** A reader of an event stream. */
export class Reader {
  readonly status: number
  private readonly body: ReadableStreamDefaultReader<Uint8Array>
  private readonly controller: AbortController
  /** The text behind the last whole piece, as it came. */
  private rest: Array<string> = []
  private readonly decoder = new TextDecoder()
  readonly sent: Array<Sent> = []

  constructor(response: Response, controller: AbortController) {
    this.status = response.status
    this.body = response.body!.getReader()
    this.controller = controller
  }

  /** Reads until something holds of what was sent, or to the end. */
  async until(holds: (sent: Sent) => boolean): Promise<ReadonlyArray<Sent>> {
    let from = 0
    while (true) {
      for (; from < this.sent.length; from++) if (holds(this.sent[from]!)) return this.sent
      const { done, value } = await this.body.read()
      if (done) return this.sent
      const text = this.decoder.decode(value, { stream: true })
      // A piece of many megabytes comes in many parts: it is put together once, where its end may be in the last two.
      const before = this.rest.at(-1)?.at(-1) ?? ""
      this.rest.push(text)
      if (!(before + text).includes("\n\n")) continue
      const pieces = this.rest.join("").split("\n\n")
      this.rest = [pieces.pop() ?? ""]
      for (const piece of pieces) {
        const sent = sentOf(piece)
        if (sent !== undefined) this.sent.push(sent)
      }
    }
  }

  readonly end = (): Promise<ReadonlyArray<Sent>> => this.until(() => false)

  leave(): void {
    this.controller.abort()
  }
}

const sentOf = (piece: string): Sent | undefined => {
  const field = (name: string) =>
    piece.split("\n").filter((line) => line.startsWith(`${name}: `)).map((line) => line.slice(name.length + 2)).join(
      "\n"
    )
  const data = field("data")
  if (data === "") return undefined
  return {
    ...(field("id") === "" ? {} : { id: field("id") }),
    ...(field("event") === "" ? {} : { event: field("event") }),
    data: data === "[DONE]" ? data : JSON.parse(data)
  }
}

/** The public events of a stream. */
export const eventsOf = (sent: ReadonlyArray<Sent>): ReadonlyArray<Event.PublicEvent> =>
  sent.flatMap(({ data, event }) => event === undefined && data !== "[DONE]" ? [data] : [])

/** Asks a site, and reads its answer as JSON. */
export const asking = (site: Site) => (method: string, path: string, body?: unknown) =>
  Effect.map(Effect.promise(() => site.ask(method, path, body)), ({ status, text }) => ({
    status,
    body: text === "" ? undefined : JSON.parse(text)
  }))

/** The text that a stream says. */
export const saidIn = (events: ReadonlyArray<Event.PublicEvent>): string =>
  events.map((event) => event._tag === "TextDelta" ? event.delta : "").join("")

/** The texts of the replies, each whole. */
export const textsIn = (events: ReadonlyArray<Event.PublicEvent>): ReadonlyArray<string> => {
  const texts: Array<string> = []
  for (const event of events) {
    const last = texts.length - 1
    if (event._tag === "MessageStarted") texts.push("")
    else if (event._tag === "TextDelta") texts[last] += event.delta
    else if (event._tag === "TextCompleted") texts[last] = event.text
  }
  return texts
}

const init = (method: string, body: unknown, headers: Record<string, string>): RequestInit => ({
  method,
  headers: { ...(body === undefined ? {} : { "content-type": "application/json" }), ...headers },
  ...(body === undefined ? {} : { body: typeof body === "string" ? body : JSON.stringify(body) })
})

/** The client of a server at this address. */
export const siteAt = (url: string): Site => ({
  url,
  ask: async (method, path, body, headers = {}) => {
    const response = await fetch(url + path, init(method, body, headers))
    return { status: response.status, headers: response.headers, text: await response.text() }
  },
  open: async (method, path, body, headers = {}) => {
    const controller = new AbortController()
    const response = await fetch(url + path, { ...init(method, body, headers), signal: controller.signal })
    return new Reader(response, controller)
  }
})

/**
 * A clock on which a second that something waits before it looks again is a twentieth of one: the poll of a journal that
 * another process writes, and the first pause of a worker after a failed attempt. Time itself is as it is.
 */
const hurried = Effect.map(Clock.Clock, (clock): Clock.Clock =>
  Object.assign(Object.create(clock), {
    sleep: (duration: Duration.Duration) =>
      clock.sleep(Duration.toMillis(duration) === 1_000 ? Duration.millis(50) : duration)
  }))

/** The parts of the servers of a test file, by the addresses of their clients. */
export const parts = new Map<string, Parts>()

/** The parts of the server of a client. */
export const partsOf = ({ url }: { readonly url: string }): Parts => {
  const site = parts.get(url)
  if (site === undefined) throw new Error(`nothing is served at ${url}`)
  return site
}

/** The workers of the same servers. */
export const workers = new Map<string, Driver>()

/** Serves agents until the scope closes. A server that was closed holds nothing: its ledger is part of every test. */
export const serve = (
  agents: ReadonlyArray<Agent.Agent<any>>,
  model: Layer.Layer<Adapter.Adapter>,
  options: Partial<Server.Options> & { readonly store?: Layer.Layer<Session.Store> } = {}
): Effect.Effect<Site, never, Scope.Scope> =>
  Effect.gen(function*() {
    const { mcp, store = Session.Store.layerMemory, ...given } = options
    let site: Parts | undefined
    let worker: Driver | undefined
    const mount: NonNullable<typeof mcp>["mount"] = (router, parts) =>
      Effect.gen(function*() {
        site = parts
        worker = yield* Worker.Worker
        if (mcp !== undefined) yield* mcp.mount(router, parts)
      })
    const app = Server.layer({ agents, authorize: Server.allowLoopback, drain: 100, ...given, mcp: { mount } }).pipe(
      Layer.provide([model, store]),
      Server.layerNode({ port: 0 })
    )
    const clock = yield* hurried
    const scope = yield* Scope.make()
    // A server that is closed waits a second for the clients that are left.
    yield* Effect.addFinalizer((exit) =>
      Effect.andThen(
        Effect.provideService(Scope.close(scope, exit), Clock.Clock, clock),
        Effect.suspend(() => site === undefined ? Effect.void : requireNothing(site))
      )
    )
    const context = yield* Effect.provideService(
      Layer.buildWithScope(app as Layer.Layer<HttpServer.HttpServer>, scope),
      Clock.Clock,
      clock
    )
    const { address } = Context.get(context, HttpServer.HttpServer)
    const url = `http://127.0.0.1:${(address as { readonly port: number }).port}`
    if (site !== undefined) parts.set(url, site)
    if (worker !== undefined) workers.set(url, worker)
    return siteAt(url)
  }).pipe(Effect.orDie)
